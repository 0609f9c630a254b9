//! The least that a durable answer costs: a server that reads, writes what it read into a file that was filled before,
//! syncs it, and answers. It knows nothing of messages but how long they are. What is readable together is written and
//! synced together.
//!
//!     --exchanges N:HEX,N:HEX   N bytes are answered by these; the last one repeats

use crate::poll::{Poll, READABLE};
use crate::script::hex;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;

const FILE_BYTES: u64 = 64 * 1024 * 1024;
const BLOCK_BYTES: usize = 1024 * 1024;
const LISTENER: usize = usize::MAX;

pub struct Exchange {
    request_bytes: usize,
    answer: Vec<u8>,
}

pub fn exchanges(text: &str) -> Option<Vec<Exchange>> {
    let one = |part: &str| {
        let (bytes, answer) = part.split_once(':')?;
        let request_bytes: usize = bytes.parse().ok().filter(|&bytes| bytes > 0)?;
        Some(Exchange { request_bytes, answer: hex(answer)? })
    };
    text.split(',').map(one).collect()
}

struct Client {
    stream: TcpStream,
    step: usize,
    held: usize, // bytes of the request that is not whole yet
}

impl Client {
    /// The answers to what is whole with so many more bytes.
    fn take(&mut self, mut got: usize, exchanges: &[Exchange]) -> Vec<u8> {
        let mut out = Vec::new();
        while self.held + got >= exchanges[self.step].request_bytes {
            got -= exchanges[self.step].request_bytes - self.held;
            out.extend(&exchanges[self.step].answer);
            (self.held, self.step) = (0, (self.step + 1).min(exchanges.len() - 1));
        }
        self.held += got;
        out
    }
}

struct Filled {
    file: File,
    at: u64,
}

impl Filled {
    fn make(path: &str) -> std::io::Result<Filled> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        let zeros = vec![0; BLOCK_BYTES];
        for at in (0..FILE_BYTES).step_by(BLOCK_BYTES) {
            file.write_all_at(&zeros, at)?;
        }
        file.sync_all()?;
        Ok(Filled { file, at: 0 })
    }

    fn keep(&mut self, data: &[u8]) -> std::io::Result<()> {
        if self.at + data.len() as u64 > FILE_BYTES {
            self.at = 0;
        }
        self.file.write_all_at(data, self.at)?;
        self.at += data.len() as u64;
        self.file.sync_data()
    }
}

/// Serve until the process is ended.
pub fn serve(address: &str, path: &str, exchanges: &[Exchange]) -> std::io::Result<()> {
    let mut file = Filled::make(path)?;
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let mut poll = Poll::new()?;
    poll.add(&listener, LISTENER, READABLE)?;
    let mut clients: Vec<Option<Client>> = Vec::new();
    let mut data = vec![0; BLOCK_BYTES];
    loop {
        let (mut got, mut arrived, mut owed) = (0, false, Vec::new());
        for event in poll.wait(-1)? {
            let number = event.token as usize;
            if number == LISTENER {
                arrived = true;
                continue;
            }
            let Some(client) = &mut clients[number] else { continue };
            match client.stream.read(&mut data[got..]) {
                Ok(0) => clients[number] = None,
                Ok(read) => {
                    got += read;
                    owed.push((number, client.take(read, exchanges)));
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => clients[number] = None,
            }
        }
        if got > 0 {
            file.keep(&data[..got])?;
        }
        for (number, answer) in owed.iter().filter(|(_, answer)| !answer.is_empty()) {
            // Answers are a few bytes: they fit into the socket, or the client has stopped reading them.
            if let Some(client) = &mut clients[*number]
                && client.stream.write_all(answer).is_err()
            {
                clients[*number] = None;
            }
        }
        while arrived && let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            poll.add(&stream, clients.len(), READABLE)?;
            clients.push(Some(Client { stream, step: 0, held: 0 }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_in_whatever_pieces_they_come() {
        let exchanges = exchanges("5:,3:4f4b,2:21").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for size in 1..=14 {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut client = Client { stream, step: 0, held: 0 };
            let mut said = Vec::new();
            let mut left = 14;
            while left > 0 {
                let piece = size.min(left);
                said.extend(client.take(piece, &exchanges));
                left -= piece;
            }
            assert_eq!(said, b"OK!!!");
        }
    }

    #[test]
    fn exchanges_without_a_length_are_refused() {
        assert!(exchanges("0:00").is_none());
        assert!(exchanges("4").is_none());
        assert!(exchanges("4:0").is_none());
    }
}
