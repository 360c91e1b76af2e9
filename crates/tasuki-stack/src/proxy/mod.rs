//! A TCP proxy that cuts, swallows and slows the connections to one server.
//!
//! One task owns the listener and takes every change as a message that it answers, so
//! a change is in force for every connection when its call returns.
//!
//! Invariant: bytes arrive in order and without holes, or the connection breaks. A
//! connection that lost bytes in a blackhole is reset when the proxy heals, because what
//! would follow is not what was sent.
//!
//! Not here: anything that knows the protocol inside.

mod pipe;

use std::{io, net::SocketAddr, time::Duration};

use socket2::{Domain, SockRef, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};

use crate::{
    Error,
    port::{free_port, loopback},
};

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;
/// How many ports may be lost to other programs.
const PORT_TRIES: usize = 20;

/// A proxy to one server. Dropping it closes its port and its connections.
///
/// It needs a running runtime: a test that blocks its only thread stops it, too.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    target: SocketAddr,
    socket: Socket,
    changes: mpsc::UnboundedSender<Change>,
    _task: JoinSet<()>,
}

/// What happens to bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weather {
    blackhole: bool,
    latency: Duration,
}

#[derive(Debug)]
enum Kind {
    Reset,
    Refuse,
    Blackhole,
    Latency(Duration),
    Heal,
}

#[derive(Debug)]
struct Change {
    kind: Kind,
    done: oneshot::Sender<io::Result<()>>,
}

/// The state behind the listener.
#[derive(Debug)]
struct Keeper {
    target: SocketAddr,
    socket: Socket,
    accepting: bool,
    weather: watch::Sender<Weather>,
    connections: JoinSet<()>,
    /// Connections watch it; a change of the number tells them to break.
    cuts: watch::Sender<u64>,
}

impl Proxy {
    /// Listens on a free loopback port and forwards to `target`.
    pub async fn start(target: SocketAddr) -> Result<Self, Error> {
        let failed = |source| Error::Proxy {
            port: target.port(),
            source,
        };
        let socket = listen()?;
        let addr = socket.local_addr().map_err(failed)?;
        let addr = addr.as_socket().unwrap_or(loopback(0));
        let keeper = Keeper {
            target,
            socket: socket.try_clone().map_err(failed)?,
            accepting: true,
            weather: watch::Sender::default(),
            connections: JoinSet::new(),
            cuts: watch::Sender::default(),
        };
        let (changes, queue) = mpsc::unbounded_channel();
        let mut task = JoinSet::new();
        task.spawn(keeper.run(queue));
        let proxy = Self {
            addr,
            target,
            socket,
            changes,
            _task: task,
        };
        proxy.heal().await?;
        Ok(proxy)
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Breaks all connections with a TCP reset, on both sides. New ones are welcome.
    pub async fn reset(&self) -> Result<(), Error> {
        self.change(Kind::Reset).await
    }

    /// Refuses new connections. Those that are open stay.
    pub async fn refuse(&self) -> Result<(), Error> {
        self.change(Kind::Refuse).await
    }

    /// Swallows all bytes in both directions. Connections stay open, also when one side
    /// closes, and new ones are accepted: nobody is told anything.
    pub async fn blackhole(&self) -> Result<(), Error> {
        self.change(Kind::Blackhole).await
    }

    /// Delays what is sent from now on, in each direction; a round trip takes twice that.
    pub async fn latency(&self, latency: Duration) -> Result<(), Error> {
        self.change(Kind::Latency(latency)).await
    }

    /// Forwards everything at once again. Connections that lost bytes are reset.
    pub async fn heal(&self) -> Result<(), Error> {
        self.change(Kind::Heal).await
    }

    async fn change(&self, kind: Kind) -> Result<(), Error> {
        let (done, answer) = oneshot::channel();
        let ended = || io::Error::other("the proxy has ended");
        let result = match self.changes.send(Change { kind, done }) {
            Ok(()) => answer.await.unwrap_or_else(|_ended| Err(ended())),
            Err(_ended) => Err(ended()),
        };
        result.map_err(|source| Error::Proxy {
            port: self.target.port(),
            source,
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The task ends a moment later; nobody gets in meanwhile.
        if let Err(error) = self.socket.shutdown(std::net::Shutdown::Both) {
            tracing::debug!(%error, "proxy was not listening");
        }
    }
}

impl Keeper {
    async fn run(mut self, mut changes: mpsc::UnboundedReceiver<Change>) {
        let mut listener = None;
        loop {
            if self.accepting && listener.is_none() {
                listener = self.listener().ok();
            }
            tokio::select! {
                biased;
                change = changes.recv() => {
                    let Some(Change { kind, done }) = change else { return };
                    let result = self.apply(kind, &mut listener).await;
                    // The asker may have stopped waiting; the change stands.
                    drop(done.send(result));
                }
                Some(stream) = accept(listener.as_ref()) => self.connect(stream),
                Some(_ended) = self.connections.join_next() => {}
            }
        }
    }

    async fn apply(&mut self, kind: Kind, listener: &mut Option<TcpListener>) -> io::Result<()> {
        match kind {
            Kind::Reset => {
                // A client may think itself connected while it still waits to be accepted.
                while let Some(stream) = accept_now(listener.as_ref()) {
                    stream.set_zero_linger()?;
                }
                self.cuts.send_modify(|cuts| *cuts += 1);
                while self.connections.join_next().await.is_some() {}
            }
            Kind::Refuse => {
                while let Some(stream) = accept_now(listener.as_ref()) {
                    self.connect(stream);
                }
                if self.accepting {
                    // The socket keeps its port but listens no longer: the kernel answers
                    // with a reset, and no other program can take the port meanwhile.
                    self.accepting = false;
                    *listener = None;
                    self.socket.shutdown(std::net::Shutdown::Both)?;
                }
            }
            Kind::Blackhole => self.weather.send_modify(|weather| weather.blackhole = true),
            Kind::Latency(latency) => self
                .weather
                .send_modify(|weather| weather.latency = latency),
            Kind::Heal => {
                if !self.accepting {
                    self.socket.listen(BACKLOG)?;
                    self.accepting = true;
                }
                self.weather.send_replace(Weather::default());
            }
        }
        Ok(())
    }

    fn connect(&mut self, stream: TcpStream) {
        let mut cuts = self.cuts.subscribe();
        cuts.mark_unchanged();
        let weather = self.weather.subscribe();
        self.connections
            .spawn(pipe::run(stream, self.target, weather, cuts));
    }

    /// A fresh registration with the runtime: one that has seen the socket shut down
    /// would report it as closed for ever.
    fn listener(&self) -> io::Result<TcpListener> {
        TcpListener::from_std(self.socket.try_clone()?.into())
    }
}

async fn accept(listener: Option<&TcpListener>) -> Option<TcpStream> {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    listener.accept().await.ok().map(|(stream, _peer)| stream)
}

/// A connection that waits to be accepted, if there is one.
fn accept_now(listener: Option<&TcpListener>) -> Option<TcpStream> {
    let listener = listener?;
    let socket = SockRef::from(listener);
    let (stream, _peer) = socket.accept().ok()?;
    stream.set_nonblocking(true).ok()?;
    TcpStream::from_std(stream.into()).ok()
}

fn listen() -> Result<Socket, Error> {
    let mut tries = 0;
    loop {
        let port = free_port()?;
        let bound = Socket::new(Domain::IPV4, Type::STREAM, None).and_then(|socket| {
            socket.set_reuse_address(true)?;
            socket.set_nonblocking(true)?;
            socket.bind(&loopback(port).into())?;
            socket.listen(BACKLOG)?;
            Ok(socket)
        });
        tries += 1;
        match bound {
            Ok(socket) => return Ok(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < PORT_TRIES => {}
            Err(source) => return Err(Error::Proxy { port, source }),
        }
    }
}
