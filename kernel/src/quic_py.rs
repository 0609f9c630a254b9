//! The class `QuicEndpoint` of `_native.pyi`: the Python side of an endpoint whose network thread is in `quic.rs`.
//!
//! Calls never wait for the network, except `close`, which joins the thread without the interpreter lock. What Python may still
//! do with a stream is known here without asking the thread: events are applied to this book when they are taken, in order.

use crate::quic::{Engine, WAKER, poll_of_loop};
use crate::quic_conn::Turn;
use crate::quic_core::{Door, Parts};
use crate::quic_shared::{Command, Event, Gauge, Shared};
use crate::quic_tls::{self, Limits};
use bytes::Bytes;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use quinn_proto::Endpoint;
use quinn_proto::crypto::rustls::QuicClientConfig;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

const CONNECTED: u8 = 1;
const DATA: u8 = 2;
const WRITABLE: u8 = 3;
const STOPPED: u8 = 4;
const RESET: u8 = 5;
const CLOSED: u8 = 6;
const SENT: u8 = 7;
/// Shorter pieces are copied together: a reference to each would cost more than its bytes, and QUIC walks over pieces.
const REFERENCE_BYTES_MIN: usize = 4096;
const GATHER_BYTES_MAX: usize = 64 << 10;
/// The default of a PEM text.
const NOTHING: &[u8] = &[];
const CODE_MAX: u64 = (1 << 62) - 1;

struct StreamSide {
    gauge: Arc<Gauge>,
    /// Nothing more may be sent: ended, reset or stopped.
    ended: bool,
    /// Nothing more is handed out: Python stopped it.
    deaf: bool,
}

impl StreamSide {
    fn new(send: bool) -> StreamSide {
        StreamSide { gauge: Arc::default(), ended: !send, deaf: false }
    }
}

/// What Python may do with one connection.
struct ConnectionSide {
    client: bool,
    /// Python shut it: CLOSED is on its way.
    shut: bool,
    opened: [u64; 2],
    streams: HashMap<u64, StreamSide>,
}

impl ConnectionSide {
    fn new(client: bool) -> ConnectionSide {
        ConnectionSide { client, shut: false, opened: [0; 2], streams: HashMap::new() }
    }

    fn may_send(&self, stream: u64) -> bool {
        stream & 2 == 0 || (stream & 1 == 0) == self.client
    }
}

#[derive(Default)]
struct Book {
    connections: HashMap<u64, ConnectionSide>,
    thread: Option<JoinHandle<()>>,
    /// Why the network thread is no more, told by `take` as CLOSED of all connections.
    dead: Option<String>,
    /// The last client configuration: a client mostly connects with the same one.
    client: Option<([Vec<u8>; 3], Arc<QuicClientConfig>)>,
}

#[pyclass(frozen, module = "quintet.kernel._native")]
pub struct QuicEndpoint {
    shared: Arc<Shared>,
    engine: Arc<Engine>,
    book: Mutex<Book>,
    bound: SocketAddr,
    next_number: Arc<AtomicU64>,
    limits: Limits,
    write_high: usize,
    server: bool,
}

fn wrong(why: impl Into<String>) -> PyErr {
    PyValueError::new_err(why.into())
}

fn code_fits(code: u64) -> PyResult<u64> {
    if code > CODE_MAX { Err(wrong("a QUIC code is at most 2**62 - 1")) } else { Ok(code) }
}

/// Bytes of Python for QUIC: long ones by reference, runs of short ones copied together.
fn pieces_of(data: &Bound<'_, PyList>) -> PyResult<(Vec<Bytes>, usize)> {
    let (mut pieces, mut short, mut total) = (Vec::new(), Vec::new(), 0);
    for item in data.iter() {
        let item = item.cast_into::<PyBytes>()?;
        let bytes = item.as_bytes();
        total += bytes.len();
        let long = bytes.len() >= REFERENCE_BYTES_MIN;
        if !short.is_empty() && (long || short.len() + bytes.len() > GATHER_BYTES_MAX) {
            pieces.push(Bytes::from(std::mem::take(&mut short)));
        }
        if long {
            pieces.push(Bytes::from_owner(PyBackedBytes::from(item)));
        } else {
            short.extend_from_slice(bytes);
        }
    }
    if !short.is_empty() {
        pieces.push(Bytes::from(short));
    }
    Ok((pieces, total))
}

fn join<'py>(py: Python<'py>, pieces: &[Bytes], bytes: usize) -> PyResult<Bound<'py, PyBytes>> {
    crate::unzeroed_bytes(py, bytes, |out| {
        let mut at = 0;
        for piece in pieces {
            out[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
    })
}

impl QuicEndpoint {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn alive(&self) -> PyResult<MutexGuard<'_, Book>> {
        let book = self.book();
        match &book.dead {
            Some(why) => Err(PyRuntimeError::new_err(format!("{why}; close this endpoint and make a new one"))),
            None => Ok(book),
        }
    }

    /// Where to send to from our socket: an IPv6 socket reaches IPv4 hosts by their mapped address.
    fn remote(&self, host: &str, port: u16) -> PyResult<SocketAddr> {
        let ip = match host {
            "localhost" if self.bound.is_ipv4() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            "localhost" => IpAddr::V6(Ipv6Addr::LOCALHOST),
            _ => host.parse().map_err(|_| wrong(format!("{host:?} is not an IP address: resolve names first")))?,
        };
        match (ip, self.bound.is_ipv4()) {
            (IpAddr::V6(_), true) => {
                Err(wrong(format!("{host} is an IPv6 address, and this endpoint is bound to {}", self.bound)))
            }
            (IpAddr::V4(v4), false) => Ok(SocketAddr::new(IpAddr::V6(v4.to_ipv6_mapped()), port)),
            (ip, _) => Ok(SocketAddr::new(ip, port)),
        }
    }

    /// Apply an event to the book and give it to Python, unless it is stale or not meant for it.
    fn apply<'py>(&self, py: Python<'py>, book: &mut Book, event: Event) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let tuple = match event {
            Event::Connected { number, peer } => {
                book.connections.entry(number).or_insert_with(|| ConnectionSide::new(false));
                (CONNECTED, number, peer.to_string()).into_pyobject(py)?
            }
            Event::Closed { number, code, reason } => {
                book.connections.remove(&number);
                (CLOSED, number, code, reason).into_pyobject(py)?
            }
            Event::Data { number, stream, pieces, bytes, fin } => {
                let Some(side) = book.connections.get_mut(&number) else { return Ok(None) };
                let send = side.may_send(stream);
                if side.streams.entry(stream).or_insert_with(|| StreamSide::new(send)).deaf {
                    return Ok(None);
                }
                (DATA, number, stream, join(py, &pieces, bytes)?, fin).into_pyobject(py)?
            }
            Event::Writable { number, stream } => match book.stream(number, stream) {
                Some(_) => (WRITABLE, number, stream).into_pyobject(py)?,
                None => return Ok(None),
            },
            Event::Stopped { number, stream, code } => {
                let Some(side) = book.stream(number, stream) else { return Ok(None) };
                side.ended = true;
                (STOPPED, number, stream, code).into_pyobject(py)?
            }
            Event::Reset { number, stream, code } => match book.stream(number, stream) {
                Some(side) if !side.deaf => (RESET, number, stream, code).into_pyobject(py)?,
                _ => return Ok(None),
            },
            Event::Sent { number, stream } => (SENT, number, stream).into_pyobject(py)?,
            Event::Gone { number, stream } => {
                if let Some(side) = book.connections.get_mut(&number) {
                    side.streams.remove(&stream);
                }
                return Ok(None);
            }
        };
        Ok(Some(tuple))
    }
}

impl Book {
    fn stream(&mut self, number: u64, stream: u64) -> Option<&mut StreamSide> {
        self.connections.get_mut(&number)?.streams.get_mut(&stream)
    }
}

#[pymethods]
impl QuicEndpoint {
    #[new]
    #[pyo3(signature = (host, port, *, certificate=NOTHING, key=NOTHING, client_ca=NOTHING, streams_max=1024, uni_max=0, idle_ms=30_000,
        keep_alive_ms=0, connections_max=10_000, half_open_max=1_000, retry_above=100, stream_window=1 << 20,
        connection_window=4 << 20, send_window=4 << 20, write_high=1 << 18, write_low=1 << 16))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        host: &str,
        port: u16,
        certificate: &[u8],
        key: &[u8],
        client_ca: &[u8],
        streams_max: u64,
        uni_max: u64,
        idle_ms: u64,
        keep_alive_ms: u64,
        connections_max: u64,
        half_open_max: u64,
        retry_above: u64,
        stream_window: u64,
        connection_window: u64,
        send_window: u64,
        write_high: usize,
        write_low: usize,
    ) -> PyResult<QuicEndpoint> {
        if write_low > write_high {
            return Err(wrong("write_low must not be above write_high"));
        }
        let limits =
            Limits { streams_max, uni_max, idle_ms, keep_alive_ms, stream_window, connection_window, send_window };
        let server = match certificate.is_empty() {
            true => None,
            false => Some(quic_tls::server(certificate, key, client_ca, &limits).map_err(wrong)?),
        };
        let address = (host, port).to_socket_addrs()?.next();
        let address = address.ok_or_else(|| PyOSError::new_err(format!("{host} has no address")))?;
        let socket = UdpSocket::bind(address)?;
        let bound = socket.local_addr()?;
        let poll = mio::Poll::new()?;
        let shared = Arc::new(Shared::new(mio::Waker::new(poll.registry(), WAKER)?)?);
        let config = Arc::new(quic_tls::endpoint_config(key).map_err(wrong)?);
        let serve = server.as_ref().map(|both| both[0].clone());
        let endpoint = Endpoint::new(config, serve, true, None);
        let turn = Turn {
            shared: shared.clone(),
            events: Vec::new(),
            write_low,
            streams_max: [streams_max, uni_max],
            idle_ms,
            resume: false,
        };
        let door = Door { connections_max, half_open_max, retry_above };
        let next_number = Arc::new(AtomicU64::new(1));
        let is_server = server.is_some();
        let looped = poll_of_loop()?;
        let parts = Parts {
            thread: poll.registry().try_clone()?,
            looped: looped.as_ref().map(|poll| poll.registry().try_clone()).transpose()?,
            socket,
            endpoint,
            turn,
            door,
            server,
            next_number: next_number.clone(),
        };
        let engine = Arc::new(Engine::new(parts, looped, shared.clone())?);
        let runs = engine.clone();
        let thread = std::thread::Builder::new().name("quintet-quic".to_owned()).spawn(move || runs.run(poll))?;
        let book = Mutex::new(Book { thread: Some(thread), ..Book::default() });
        Ok(QuicEndpoint { shared, engine, book, bound, next_number, limits, write_high, server: is_server })
    }

    #[getter]
    fn address(&self) -> (String, u16) {
        (self.bound.ip().to_string(), self.bound.port())
    }

    fn fileno(&self) -> i32 {
        self.engine.fileno()
    }

    fn take<'py>(&self, py: Python<'py>, bytes_max: usize) -> PyResult<Bound<'py, PyList>> {
        let mut book = self.alive()?;
        let (events, dead) = match &book.thread {
            Some(_) => self.engine.take(bytes_max.max(1)),
            None => self.shared.take(bytes_max.max(1)),
        };
        let out = PyList::empty(py);
        for event in events {
            if let Some(tuple) = self.apply(py, &mut book, event)? {
                out.append(tuple)?;
            }
        }
        if let Some(why) = dead {
            for (number, _) in std::mem::take(&mut book.connections) {
                out.append((CLOSED, number, -1, &why))?;
            }
            book.dead = Some(why);
        }
        Ok(out)
    }

    fn send(&self, connection: u64, stream: u64, data: &Bound<'_, PyList>, end: bool) -> PyResult<i64> {
        let mut book = self.alive()?;
        let Some(side) = book.connections.get_mut(&connection).filter(|side| !side.shut) else { return Ok(-1) };
        let Some(side) = side.streams.get_mut(&stream).filter(|side| !side.ended) else { return Ok(-1) };
        let (data, bytes) = pieces_of(data)?;
        let queued = side.gauge.queued.fetch_add(bytes, SeqCst) + bytes;
        if queued > self.write_high {
            side.gauge.above.store(true, SeqCst);
        }
        side.ended = end;
        if bytes > 0 || end {
            let gauge = side.gauge.clone();
            self.shared.command(Command::Send { number: connection, stream, data, end, gauge });
        }
        Ok(queued as i64)
    }

    fn hold(&self) {
        self.shared.hold();
    }

    fn flush(&self) {
        let book = self.book();
        if book.thread.is_some() && book.dead.is_none() {
            self.engine.flush();
        }
    }

    fn queued(&self, connection: u64, stream: u64) -> PyResult<i64> {
        let mut book = self.alive()?;
        Ok(book.stream(connection, stream).map_or(-1, |side| side.gauge.queued.load(SeqCst) as i64))
    }

    fn open(&self, connection: u64, bidirectional: bool) -> PyResult<i64> {
        let mut book = self.alive()?;
        let Some(side) = book.connections.get_mut(&connection).filter(|side| !side.shut) else { return Ok(-1) };
        let count = &mut side.opened[usize::from(!bidirectional)];
        let stream = *count * 4 + if bidirectional { 0 } else { 2 } + u64::from(!side.client);
        *count += 1;
        side.streams.insert(stream, StreamSide::new(true));
        self.shared.command(Command::Open { number: connection, stream });
        Ok(stream as i64)
    }

    fn pause(&self, connection: u64, stream: u64, paused: bool) -> PyResult<()> {
        if self.alive()?.stream(connection, stream).is_some() {
            self.shared.command(Command::Pause { number: connection, stream, paused });
        }
        Ok(())
    }

    fn reset(&self, connection: u64, stream: u64, code: u64) -> PyResult<()> {
        code_fits(code)?;
        if let Some(side) = self.alive()?.stream(connection, stream) {
            side.ended = true;
            self.shared.command(Command::Reset { number: connection, stream, code });
        }
        Ok(())
    }

    fn stop(&self, connection: u64, stream: u64, code: u64) -> PyResult<()> {
        code_fits(code)?;
        if let Some(side) = self.alive()?.stream(connection, stream) {
            side.deaf = true;
            self.shared.command(Command::Stop { number: connection, stream, code });
        }
        Ok(())
    }

    fn shut(&self, connection: u64, code: u64, reason: &[u8]) -> PyResult<()> {
        code_fits(code)?;
        let mut book = self.alive()?;
        if let Some(side) = book.connections.get_mut(&connection).filter(|side| !side.shut) {
            side.shut = true;
            self.shared.command(Command::Shut { number: connection, code, reason: Bytes::copy_from_slice(reason) });
        }
        Ok(())
    }

    fn set_certificate(&self, certificate: &[u8], key: &[u8], client_ca: &[u8]) -> PyResult<()> {
        drop(self.alive()?);
        if !self.server {
            return Err(wrong("this endpoint is a client: it has no certificate to change"));
        }
        let server = quic_tls::server(certificate, key, client_ca, &self.limits).map_err(wrong)?;
        self.shared.command(Command::Serve(server));
        Ok(())
    }

    fn set_accepting(&self, accepting: bool) -> PyResult<()> {
        drop(self.alive()?);
        self.shared.command(Command::Accepting(accepting));
        Ok(())
    }

    fn connect(
        &self,
        host: &str,
        port: u16,
        server_name: &str,
        ca: &[u8],
        certificate: &[u8],
        key: &[u8],
    ) -> PyResult<u64> {
        let mut book = self.alive()?;
        if book.thread.is_none() {
            return Err(PyRuntimeError::new_err("this endpoint is closed: make a new one to connect"));
        }
        let remote = self.remote(host, port)?;
        let wanted = [ca.to_vec(), certificate.to_vec(), key.to_vec()];
        let crypto = match &book.client {
            Some((same, crypto)) if *same == wanted => crypto.clone(),
            _ => {
                let crypto = quic_tls::client(ca, certificate, key).map_err(wrong)?;
                book.client = Some((wanted, crypto.clone()));
                crypto
            }
        };
        let transport = self.limits.transport(remote.ip().to_canonical().is_loopback());
        let config = quic_tls::client_config(crypto, transport);
        let number = self.next_number.fetch_add(1, Relaxed);
        book.connections.insert(number, ConnectionSide::new(true));
        self.shared.command(Command::Connect { number, config, remote, server_name: server_name.to_owned() });
        Ok(number)
    }

    fn figures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let figures = &self.shared.figures;
        let all = [
            ("accepted", &figures.accepted),
            ("refused", &figures.refused),
            ("retries", &figures.retries),
            ("half_open", &figures.half_open),
            ("connections", &figures.connections),
            ("datagrams_in", &figures.datagrams_in),
            ("datagrams_out", &figures.datagrams_out),
            ("bytes_in", &figures.bytes_in),
            ("bytes_out", &figures.bytes_out),
            ("wakeups", &figures.wakeups),
        ];
        let out = PyDict::new(py);
        for (name, counter) in all {
            out.set_item(name, counter.load(Relaxed))?;
        }
        Ok(out)
    }

    fn close(&self, py: Python<'_>) {
        let thread = self.book().thread.take();
        if let Some(thread) = thread {
            self.shared.command(Command::Close);
            // A panic of the thread was caught inside it, and is told by `take`.
            py.detach(|| drop(thread.join()));
        }
    }
}

impl Drop for QuicEndpoint {
    fn drop(&mut self) {
        // Nobody joins it: the thread says goodbye and ends by itself.
        if self.book().thread.take().is_some() {
            self.shared.command(Command::Close);
        }
    }
}
