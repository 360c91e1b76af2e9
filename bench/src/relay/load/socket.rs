//! A connection to a relay, as small as can be: it shares the processors with what is measured.

use std::net::SocketAddr;

use anyhow::{Context as _, bail, ensure};
use futures_util::{SinkExt as _, Stream, StreamExt as _};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Error, Message, Utf8Bytes},
};

pub(super) type Socket = WebSocketStream<TcpStream>;

/// Connects.
pub(super) async fn open(address: SocketAddr) -> anyhow::Result<Socket> {
    let stream = TcpStream::connect(address).await;
    let stream = stream.with_context(|| format!("nobody listens on {address}"))?;
    // What is sent together is one write; waiting to fill a packet would only delay it.
    stream.set_nodelay(true)?;
    let (socket, _) = client_async(format!("ws://{address}/"), stream).await?;
    Ok(socket)
}

/// The next text.
pub(super) async fn text<S>(socket: &mut S) -> anyhow::Result<Utf8Bytes>
where
    S: Stream<Item = Result<Message, Error>> + Unpin,
{
    loop {
        match socket.next().await.context("the relay has left")?? {
            Message::Text(text) => return Ok(text),
            Message::Close(why) => bail!("the relay has closed the connection: {why:?}"),
            _ => {}
        }
    }
}

/// Sends one text.
pub(super) async fn send(socket: &mut Socket, text: String) -> anyhow::Result<()> {
    Ok(socket.send(Message::text(text)).await?)
}

/// The message that publishes an event.
pub(super) fn event(json: &str) -> Utf8Bytes {
    format!(r#"["EVENT",{json}]"#).into()
}

/// Reads until an event is accepted, and answers its id; whatever else a relay says to that is an error.
pub(super) async fn accepted<S>(socket: &mut S) -> anyhow::Result<String>
where
    S: Stream<Item = Result<Message, Error>> + Unpin,
{
    let text = text(socket).await?;
    let answer: Vec<Value> = serde_json::from_str(&text)?;
    let [Value::String(word), Value::String(id), is_accepted, ..] = answer.as_slice() else {
        bail!("`{text}` is no answer to an event");
    };
    ensure!(
        word == "OK" && *is_accepted == Value::Bool(true),
        "an event was not accepted: {text}"
    );
    Ok(id.clone())
}

/// The beginning of the id of the event that a relay sends, without reading all of it.
pub(super) fn short_id(text: &str) -> Option<u64> {
    const FIELD: &str = "\"id\":\"";
    let at = text.find(FIELD)? + FIELD.len();
    u64::from_str_radix(text.get(at..at + 16)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_known_by_the_beginning_of_its_id() {
        let text = r#"["EVENT","s",{"id":"00000000000000ff77","kind":1}]"#;
        assert_eq!(short_id(text), Some(255));
        assert_eq!(short_id(r#"["EOSE","s"]"#), None);
    }
}
