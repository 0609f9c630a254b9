//! One connection: opened with its handshake, then without blocking. What is sent is kept until all of it went out.

use crate::wire::Protocol;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

pub const STALL_MS: i32 = 30_000; // a server that says nothing for this long while something is owed has failed the run
pub const READ_BYTES: usize = 64 * 1024;

pub struct Link {
    pub stream: TcpStream,
    unsent: Vec<u8>,
}

impl Link {
    pub fn open(protocol: Protocol, address: &str, number: usize, topic: &str) -> Result<Link, String> {
        let bad = |error: std::io::Error| format!("cannot connect to {address}: {error}. Is it running?");
        let mut stream = TcpStream::connect(address).map_err(bad)?;
        stream.set_nodelay(true).map_err(bad)?;
        stream.set_read_timeout(Some(Duration::from_millis(STALL_MS as u64))).map_err(bad)?;
        protocol.handshake(&mut stream, number, topic)?;
        stream.set_nonblocking(true).map_err(bad)?;
        Ok(Link { stream, unsent: Vec::new() })
    }

    fn write(&mut self, data: &[u8]) -> Result<usize, String> {
        let mut done = 0;
        while done < data.len() {
            match self.stream.write(&data[done..]) {
                Ok(wrote) => done += wrote,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("write failed: {error}. See the server's log.")),
            }
        }
        Ok(done)
    }

    /// Send this behind what is not out yet; true if all went out.
    pub fn send(&mut self, data: &[u8]) -> Result<bool, String> {
        let done = if self.unsent.is_empty() { self.write(data)? } else { 0 };
        self.unsent.extend_from_slice(&data[done..]);
        Ok(self.unsent.is_empty())
    }

    /// Go on with what is not out yet; true if nothing is left.
    pub fn push(&mut self) -> Result<bool, String> {
        let unsent = std::mem::take(&mut self.unsent);
        let done = self.write(&unsent)?;
        self.unsent = unsent;
        self.unsent.drain(..done);
        Ok(self.unsent.is_empty())
    }

    /// Read once; 0 if there is nothing now.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, String> {
        match self.stream.read(buffer) {
            Ok(0) => Err("the server closed a connection in the middle. See its log.".into()),
            Ok(got) => Ok(got),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
            Err(error) => Err(format!("read failed: {error}. See the server's log.")),
        }
    }
}
