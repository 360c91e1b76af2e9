//! A private server that dies is started again.

use rustix::process::Signal;
use tasuki_testkit::eventually;

use crate::support::{Env, World, is_alive, signal};

#[tokio::test]
async fn a_killed_server_is_started_again_and_the_platform_becomes_ready_again() {
    let world = World::new();
    let mut up = world.up().await;

    for server in ["POSTGRES_PID", "NATS_PID", "REDIS_PID"] {
        let before = up.env.pid(server);

        signal(before, Signal::KILL);

        let what = format!("{server} has changed");
        let env = eventually(&what, async || {
            let env = Env::read(&world.env_path())?;
            (env.pid(server) != before).then_some(env)
        })
        .await;
        assert!(is_alive(env.pid(server)), "{server}");
        assert_eq!(env.pid("PID"), up.process.pid());
        world.answers(&up.url("/readyz"), "", 200).await;
        let wait = ["status", "--wait", "30s"];
        world.run(world.command(&wait)).await.ok();
    }

    up.process.signal(Signal::TERM);
    let answer = up.process.ended().await;
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!(world.holders(), []);
}
