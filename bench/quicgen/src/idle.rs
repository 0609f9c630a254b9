//! Connections that do nothing: each has one authenticated stream, and all share one socket.

use crate::Outcome;
use crate::bare::end_with_stdin;
use crate::options::Options;
use crate::transport::Target;
use crate::wire::Scope;

/// Opens `--connections N`, says `{"connections":N}`, and holds them until stdin ends.
pub async fn hold(options: &mut Options) -> Outcome<String> {
    let target = Target::take(options)?;
    let scope = Scope::take(options)?;
    let (count, at_once): (usize, usize) = (options.take("connections", 2_000)?, options.take("at-once", 16)?);
    options.done()?;
    let endpoint = target.endpoint()?;
    let mut held = Vec::new();
    while held.len() < count {
        let mut tasks = Vec::new();
        for _ in 0..at_once.clamp(1, count - held.len()) {
            let (target, scope, endpoint) = (target.clone(), scope.clone(), endpoint.clone());
            tasks.push(tokio::spawn(async move {
                let connection = target.connect(&endpoint).await?;
                let stream = scope.open(&connection).await?;
                Outcome::Ok((connection, stream))
            }));
        }
        for task in tasks {
            held.push(task.await??);
        }
    }
    println!("{{\"connections\":{}}}", held.len());
    end_with_stdin();
    for (connection, _) in &held {
        connection.closed().await;
    }
    Err("the server closed every connection".into())
}
