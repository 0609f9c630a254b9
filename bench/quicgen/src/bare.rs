//! quinn and nothing else: how fast bytes and small frames travel between two processes of this machine.

use crate::histogram::Histogram;
use crate::options::Options;
use crate::transport::{Target, Tuning, path, server};
use crate::{Outcome, processor_seconds};
use quinn::Connection;
use std::io::Read;
use std::time::{Duration, Instant};

const WRITE_BYTES: usize = 64 * 1024;
const ECHO_BYTES_MAX: usize = 64 * 1024;

#[derive(Clone, Copy)]
pub enum Kind {
    Sink,
    Echo,
}

/// Ends this process when stdin ends: servers live as long as whoever started them.
pub fn end_with_stdin() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}

/// Serve until stdin ends. `--cert FILE` is where the certificate is put.
pub async fn serve(options: &mut Options, kind: Kind) -> Outcome<String> {
    let tuning = Tuning::take(options)?;
    let endpoint = server(&tuning, &options.need::<String>("cert")?)?;
    options.done()?;
    println!("{{\"port\":{}}}", endpoint.local_addr()?.port());
    end_with_stdin();
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let served = match (incoming.await, kind) {
                (Ok(connection), Kind::Sink) => sink(connection).await,
                (Ok(connection), Kind::Echo) => echo(connection).await,
                (Err(why), _) => Err(why.into()),
            };
            if let Err(why) = served {
                eprintln!("quicgen server: {why}");
            }
        });
    }
    Ok(String::new())
}

async fn sink(connection: Connection) -> Outcome<()> {
    let mut stream = connection.accept_uni().await?;
    let mut count = 0u64;
    while let Some(chunk) = stream.read_chunk(usize::MAX, true).await? {
        count += chunk.bytes.len() as u64;
    }
    let mut answer = connection.open_uni().await?;
    answer.write_all(&count.to_be_bytes()).await?;
    answer.finish()?;
    connection.closed().await;
    Ok(())
}

async fn echo(connection: Connection) -> Outcome<()> {
    let (mut send, mut receive) = connection.accept_bi().await?;
    let mut buffer = vec![0; ECHO_BYTES_MAX];
    // The client closes its connection when it has seen enough, which is how this ends.
    while let Ok(Some(count)) = receive.read(&mut buffer).await {
        send.write_all(&buffer[..count]).await?;
    }
    Ok(())
}

/// `--bytes N` in writes of 64 KiB, timed until the server says that it has them all.
pub async fn send(options: &mut Options) -> Outcome<String> {
    let target = Target::take(options)?;
    let bytes: u64 = options.need("bytes")?;
    options.done()?;
    let endpoint = target.endpoint()?;
    let connection = target.connect(&endpoint).await?;
    let mut stream = connection.open_uni().await?;
    let block = vec![0xa5; WRITE_BYTES];
    let (start, busy) = (Instant::now(), processor_seconds());
    let mut left = bytes;
    while left > 0 {
        let now = left.min(WRITE_BYTES as u64) as usize;
        stream.write_all(&block[..now]).await?;
        left -= now as u64;
    }
    stream.finish()?;
    let mut answer = connection.accept_uni().await?;
    let mut count = [0; 8];
    answer.read_exact(&mut count).await?;
    let (seconds, busy) = (start.elapsed().as_secs_f64(), processor_seconds() - busy);
    let count = u64::from_be_bytes(count);
    if count != bytes {
        return Err(format!("{bytes} bytes were sent and {count} arrived").into());
    }
    let fared = path(&connection);
    connection.close(0u32.into(), b"");
    endpoint.wait_idle().await;
    Ok(format!("{{\"bytes\":{bytes},\"seconds\":{seconds},\"busy_s\":{busy:.2},{fared}}}"))
}

/// `--size N` bytes there and back, one frame under way, for `--seconds S` after `--warmup S`.
pub async fn round_trips(options: &mut Options) -> Outcome<String> {
    let target = Target::take(options)?;
    let size: usize = options.take("size", 100)?;
    let (warmup, seconds) = (options.take("warmup", 0.5)?, options.take("seconds", 2.0)?);
    options.done()?;
    let endpoint = target.endpoint()?;
    let connection = target.connect(&endpoint).await?;
    let (mut send, mut receive) = connection.open_bi().await?;
    let (frame, mut reply) = (vec![0x5a; size], vec![0; size]);
    let mut seen = Timed::new(warmup, seconds);
    while seen.goes_on() {
        let start = Instant::now();
        send.write_all(&frame).await?;
        receive.read_exact(&mut reply).await?;
        seen.add(start);
    }
    if reply != frame {
        return Err("the reply is not what was sent".into());
    }
    connection.close(0u32.into(), b"");
    endpoint.wait_idle().await;
    Ok(format!("{{{}}}", seen.json()))
}

/// Operations counted between a warm-up and an end.
pub struct Timed {
    from: Instant,
    until: Instant,
    latencies: Histogram,
    pub operations: u64,
}

impl Timed {
    pub fn new(warmup: f64, seconds: f64) -> Timed {
        let from = Instant::now() + Duration::from_secs_f64(warmup);
        let until = from + Duration::from_secs_f64(seconds);
        Timed { from, until, latencies: Histogram::new(), operations: 0 }
    }

    pub fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    /// One operation that began at `start` and ends now. Those that began in the warm-up are not counted.
    pub fn add(&mut self, start: Instant) {
        if start >= self.from {
            self.latencies.add(start.elapsed().as_nanos() as u64);
            self.operations += 1;
        }
    }

    pub fn json(&self) -> String {
        let seconds = self.from.elapsed().as_secs_f64();
        let (p50, p99) = (self.latencies.at_us(0.5), self.latencies.at_us(0.99));
        let operations = self.operations;
        format!("\"operations\":{operations},\"seconds\":{seconds},\"p50_us\":{p50:.1},\"p99_us\":{p99:.1}")
    }
}
