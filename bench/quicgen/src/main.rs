//! Load on the Felix door, and bare quinn beside it. Every run prints one JSON line; servers print {"port":N} first.
//!
//!     bare-sink, bare-send     one uni stream of N bytes, read and thrown away, and their count sent back (bare.rs)
//!     bare-echo, bare-rtt      one frame there and back, over and over (bare.rs)
//!     felix-flow               publisher and subscribers in one program, so that none runs too far ahead (flow.rs)
//!     felix-publish            the publisher alone (flow.rs)
//!     felix-subscribe          the subscribers alone (flow.rs)
//!     felix-rtt                acknowledged publishes, one under way (ask.rs)
//!     felix-cache              cache gets, several under way on several streams (ask.rs)
//!     felix-idle               connections that are authenticated and silent, until stdin ends (idle.rs)
//!
//! Every runtime has one thread: a generator shares few cores with the broker it measures.

mod ask;
mod bare;
mod flow;
#[path = "../../loadgen/src/histogram.rs"]
mod histogram;
mod idle;
mod options;
mod transport;
mod wire;

use options::Options;
use std::process::ExitCode;

pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Processor time of this process so far, all threads, in seconds: fields 14 and 15 of its stat line, in ticks of 10 ms.
pub fn processor_seconds() -> f64 {
    let line = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = line.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = behind_name.split_whitespace().skip(11).take(2).filter_map(|word| word.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

async fn run(what: &str, mut options: Options) -> Outcome<String> {
    match what {
        "bare-sink" => bare::serve(&mut options, bare::Kind::Sink).await,
        "bare-echo" => bare::serve(&mut options, bare::Kind::Echo).await,
        "bare-send" => bare::send(&mut options).await,
        "bare-rtt" => bare::round_trips(&mut options).await,
        "felix-flow" => flow::both(&mut options).await,
        "felix-publish" => flow::publish_alone(&mut options).await,
        "felix-subscribe" => flow::subscribe_alone(&mut options).await,
        "felix-rtt" => ask::round_trips(&mut options).await,
        "felix-cache" => ask::cache(&mut options).await,
        "felix-idle" => idle::hold(&mut options).await,
        other => Err(format!("{other:?} is not known; src/main.rs lists what is").into()),
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let what = words.next().unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = Options::parse(words).and_then(|options| runtime?.block_on(run(&what, options)));
    match outcome {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("quicgen {what}: {why}");
            ExitCode::FAILURE
        }
    }
}
