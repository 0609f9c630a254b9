//! What an endpoint has behind its lock: the socket, all connections, their timers, and the parts of a turn.
//!
//! Whoever holds the lock runs a turn, or part of one: obey commands, read datagrams, fire timers, ask the touched connections
//! what happened, hand that to Python, send what they have. Only connections that were touched cost anything; each sends a
//! bounded share per turn and then waits behind the others. The protocol is quinn-proto's; streams are in `quic_conn.rs`, who
//! runs which turn is in `quic.rs`. No thread and no Python lives here.

use crate::quic::{THREAD_MIN, Watch, Window};
use crate::quic_conn::{Conn, Turn};
use crate::quic_shared::{Command, Event, Figures, Shared};
use bytes::{Bytes, BytesMut};
use mio::{Interest, Registry};
use quinn_proto::{
    ClientConfig, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, Incoming, ServerConfig, Transmit, VarInt,
};
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{ErrorKind, IoSliceMut, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Datagrams, or runs of them that the system joined, read with one call.
const READ_BATCH: usize = 8;
const READ_BYTES: usize = 65_536;
/// Reads per turn: then connections get to answer.
const READS_MAX: usize = 4;
/// Sends of one connection per turn, and the most bytes and datagrams of one send.
const SENDS_MAX: usize = 8;
const SEND_BYTES_MAX: usize = 65_000;
const SEND_DATAGRAMS_MAX: usize = 64;
/// A handshake that is not done after this time is given up: one that a peer began, and one of ours.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
const CONNECT_MAX: Duration = Duration::from_secs(10);
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// How many connections are let in.
pub struct Door {
    pub connections_max: u64,
    pub half_open_max: u64,
    pub retry_above: u64,
}

pub struct Core {
    /// The thread's poll and, where the loop can watch, the one whose descriptor the loop has.
    pub thread: Registry,
    pub looped: Option<Registry>,
    /// What the thread's poll was told to look for.
    pub interest: Option<Interest>,
    pub watch: Watch,
    pub window: Window,
    /// How long the thread keeps the watch before it offers it to the loop.
    pub keeps: Duration,
    /// When the thread wakes by itself; None: only when it is woken.
    pub sleeps_until: Option<Instant>,
    pub socket: std::net::UdpSocket,
    pub udp: UdpSocketState,
    pub endpoint: Endpoint,
    pub turn: Turn,
    pub commands: Vec<Command>,
    pub door: Door,
    pub accepting: bool,
    /// For peers on a network, and for those on this machine.
    pub server: Option<Box<[Arc<ServerConfig>; 2]>>,
    pub next_number: Arc<std::sync::atomic::AtomicU64>,
    /// By quinn's handle.
    pub conns: Vec<Option<Box<Conn>>>,
    pub handles: HashMap<u64, usize>,
    pub live: u64,
    pub half_open: u64,
    /// New connections that the loop found: the thread lets them in, because a handshake takes its time.
    pub knocks: Vec<(Incoming, Vec<u8>)>,
    /// One entry per connection at most: see `Conn::armed`.
    pub timers: BTreeSet<(Instant, usize)>,
    pub dirty: VecDeque<usize>,
    pub starved: Vec<usize>,
    /// The thread watches, and has not found the socket empty since it was told of datagrams.
    pub readable: bool,
    /// A datagram the system did not take yet: nothing else is sent before it.
    pub unsent: Option<Transmit>,
    pub output: Vec<u8>,
    pub input: Vec<u8>,
}

pub struct Parts {
    pub thread: Registry,
    pub looped: Option<Registry>,
    pub socket: std::net::UdpSocket,
    pub endpoint: Endpoint,
    pub turn: Turn,
    pub door: Door,
    pub server: Option<Box<[Arc<ServerConfig>; 2]>>,
    pub next_number: Arc<std::sync::atomic::AtomicU64>,
}

impl Core {
    pub fn new(parts: Parts) -> Result<Core> {
        parts.socket.set_nonblocking(true)?;
        let udp = UdpSocketState::new(UdpSockRef::from(&parts.socket))?;
        // The system cuts what is above its own limit; small buffers lose datagrams, they break nothing.
        let _ = udp.set_recv_buffer_size(UdpSockRef::from(&parts.socket), SOCKET_BUFFER_BYTES);
        let _ = udp.set_send_buffer_size(UdpSockRef::from(&parts.socket), SOCKET_BUFFER_BYTES);
        let mut core = Core {
            thread: parts.thread,
            looped: parts.looped,
            interest: None,
            watch: Watch::Thread,
            window: Window::new(),
            keeps: THREAD_MIN,
            sleeps_until: None,
            socket: parts.socket,
            udp,
            endpoint: parts.endpoint,
            turn: parts.turn,
            commands: Vec::new(),
            door: parts.door,
            accepting: true,
            server: parts.server,
            next_number: parts.next_number,
            conns: Vec::new(),
            handles: HashMap::new(),
            live: 0,
            half_open: 0,
            knocks: Vec::new(),
            timers: BTreeSet::new(),
            dirty: VecDeque::new(),
            starved: Vec::new(),
            readable: false,
            unsent: None,
            output: Vec::with_capacity(READ_BYTES),
            input: vec![0; READ_BATCH * READ_BYTES],
        };
        core.listen()?;
        Ok(core)
    }

    pub fn shared(&self) -> &Shared {
        &self.turn.shared
    }

    pub fn show(&self) {
        let figures = &self.shared().figures;
        figures.half_open.store(self.half_open, Relaxed);
        figures.connections.store(self.live - self.half_open, Relaxed);
    }

    // -- commands -----------------------------------------------------------------------------------------------------

    pub fn obey(&mut self, command: Command, now: Instant) {
        let number = match command {
            Command::Connect { number, config, remote, server_name } => {
                return self.connect(number, *config, remote, &server_name, now);
            }
            Command::Serve(server) => {
                self.endpoint.set_server_config(Some(server[0].clone()));
                self.server = Some(server);
                return;
            }
            Command::Accepting(accepting) => {
                self.accepting = accepting;
                return;
            }
            Command::Resume => return self.resume(),
            Command::Close => return,
            Command::Open { number, .. }
            | Command::Send { number, .. }
            | Command::Pause { number, .. }
            | Command::Reset { number, .. }
            | Command::Stop { number, .. }
            | Command::Shut { number, .. } => number,
        };
        let Some(&handle) = self.handles.get(&number) else { return };
        self.touch(handle);
        let Some(Some(conn)) = self.conns.get_mut(handle) else { return };
        let was_closed = conn.closed;
        conn.obey(command, now, &mut self.turn);
        self.note_starved(handle);
        self.note_closed(handle, was_closed);
    }

    fn connect(&mut self, number: u64, config: ClientConfig, remote: SocketAddr, server_name: &str, now: Instant) {
        match self.endpoint.connect(now, config, remote, server_name) {
            Ok((handle, quic)) => self.add(handle, number, quic, now),
            Err(why) => {
                self.turn.events.push(Event::Closed { number, code: -1, reason: format!("cannot connect: {why}") });
            }
        }
    }

    fn add(&mut self, handle: ConnectionHandle, number: u64, quic: quinn_proto::Connection, now: Instant) {
        let index = handle.0;
        if self.conns.len() <= index {
            self.conns.resize_with(index + 1, || None);
        }
        let most = if quic.side().is_server() { HANDSHAKE_MAX } else { CONNECT_MAX };
        self.conns[index] = Some(Box::new(Conn::new(number, quic, now + most, &self.turn)));
        self.handles.insert(number, index);
        self.live += 1;
        self.half_open += 1;
        self.touch(index);
    }

    pub fn resume(&mut self) {
        for handle in std::mem::take(&mut self.starved) {
            self.touch(handle);
            if let Some(Some(conn)) = self.conns.get_mut(handle) {
                conn.listed = false;
                conn.read_on(&mut self.turn);
                self.note_starved(handle);
            }
        }
    }

    pub fn goodbye(&mut self, now: Instant) {
        for handle in 0..self.conns.len() {
            if let Some(conn) = &mut self.conns[handle] {
                conn.quic.close(now, VarInt::from_u32(0), Bytes::from_static(b"the endpoint is closed"));
                conn.end(0, "the endpoint is closed".to_owned(), &mut self.turn);
                self.touch(handle);
            }
        }
        // Data that was under way does not hold up the end: a datagram that waits is lost, each connection gets one turn.
        self.unsent = None;
        self.transmit(now);
        self.turn.shared.hand_over(&mut self.turn.events, true);
    }

    // -- bookkeeping --------------------------------------------------------------------------------------------------

    fn touch(&mut self, handle: usize) {
        if let Some(Some(conn)) = self.conns.get_mut(handle) {
            if !std::mem::replace(&mut conn.dirty, true) {
                self.dirty.push_back(handle);
            }
        }
    }

    fn note_starved(&mut self, handle: usize) {
        if let Some(Some(conn)) = self.conns.get_mut(handle) {
            if conn.starved && !std::mem::replace(&mut conn.listed, true) {
                self.starved.push(handle);
            }
        }
    }

    /// Count a connection out once, when it is over for Python.
    fn note_closed(&mut self, handle: usize, was_closed: bool) {
        if let Some(Some(conn)) = self.conns.get(handle) {
            if conn.closed && !was_closed {
                self.live -= 1;
                self.half_open -= u64::from(!conn.connected);
            }
        }
    }

    /// What happened on a connection: to its streams, and between it and the endpoint.
    pub fn drive(&mut self, handle: usize) {
        let Some(Some(conn)) = self.conns.get_mut(handle) else { return };
        let (was_closed, was_connected) = (conn.closed, conn.connected);
        conn.drive(&mut self.turn);
        let mut drained = false;
        while let Some(event) = conn.quic.poll_endpoint_events() {
            drained |= event.is_drained();
            if let Some(answer) = self.endpoint.handle_event(ConnectionHandle(handle), event) {
                conn.quic.handle_event(answer);
            }
        }
        if conn.connected && !was_connected {
            self.half_open -= 1;
            if conn.quic.side().is_server() {
                Figures::add(&self.turn.shared.figures.accepted, 1);
            }
        }
        self.note_starved(handle);
        self.note_closed(handle, was_closed);
        if drained {
            self.remove(handle);
        }
    }

    fn remove(&mut self, handle: usize) {
        let Some(mut conn) = self.conns[handle].take() else { return };
        if !conn.closed {
            self.live -= 1;
            self.half_open -= u64::from(!conn.connected);
            conn.end(-1, "the connection was lost".to_owned(), &mut self.turn);
        }
        if let Some(deadline) = conn.armed {
            self.timers.remove(&(deadline, handle));
        }
        self.handles.remove(&conn.number);
        if conn.listed {
            self.starved.retain(|other| *other != handle);
        }
    }

    // -- timers -------------------------------------------------------------------------------------------------------

    /// Timers move with every packet, mostly to later: an entry that comes too early is put right when it fires.
    fn arm(&mut self, handle: usize) {
        let Some(Some(conn)) = self.conns.get_mut(handle) else { return };
        let mut wanted = conn.quic.poll_timeout();
        if !conn.connected && !conn.closed {
            wanted = Some(wanted.map_or(conn.handshake_until, |deadline| deadline.min(conn.handshake_until)));
        }
        let Some(wanted) = wanted else { return };
        if conn.armed.is_none_or(|armed| wanted < armed) {
            if let Some(armed) = conn.armed.replace(wanted) {
                self.timers.remove(&(armed, handle));
            }
            self.timers.insert((wanted, handle));
        }
    }

    pub fn fire(&mut self, now: Instant) {
        while let Some(&(deadline, handle)) = self.timers.first() {
            if deadline > now {
                break;
            }
            self.timers.pop_first();
            self.touch(handle);
            let Some(Some(conn)) = self.conns.get_mut(handle) else { continue };
            conn.armed = None;
            conn.quic.handle_timeout(now);
            if !conn.connected && !conn.closed && conn.handshake_until <= now {
                conn.quic.close(now, VarInt::from_u32(0), Bytes::from_static(b"handshake took too long"));
                conn.end(-1, "no answer from the peer: the handshake timed out".to_owned(), &mut self.turn);
                self.note_closed(handle, false);
            }
        }
    }

    // -- datagrams in -------------------------------------------------------------------------------------------------

    /// Sets `readable` to whether there may be more.
    pub fn receive(&mut self, now: Instant, inline: bool) {
        let mut input = std::mem::take(&mut self.input);
        for _ in 0..READS_MAX {
            if !self.readable {
                break;
            }
            let mut metas = [RecvMeta::default(); READ_BATCH];
            let read = {
                let mut parts = input.chunks_mut(READ_BYTES);
                let mut buffers: [IoSliceMut; READ_BATCH] =
                    std::array::from_fn(|_| IoSliceMut::new(parts.next().expect("one part for each")));
                self.udp.recv(UdpSockRef::from(&self.socket), &mut buffers, &mut metas)
            };
            let count = match read {
                Ok(count) => count,
                Err(why) if why.kind() == ErrorKind::Interrupted => continue,
                Err(why) if why.kind() == ErrorKind::WouldBlock => {
                    self.readable = false;
                    break;
                }
                // The error of one datagram: others may stand behind it.
                Err(_) => continue,
            };
            // Fewer than asked for: the socket was empty. The next one is told anew.
            self.readable = count >= READ_BATCH.min(quinn_udp::BATCH_SIZE);
            for (meta, part) in metas[..count].iter().zip(input.chunks(READ_BYTES)) {
                for datagram in part[..meta.len.min(READ_BYTES)].chunks(meta.stride.max(1)) {
                    self.datagram(datagram, meta, now, inline);
                }
            }
        }
        self.input = input;
    }

    fn datagram(&mut self, data: &[u8], meta: &RecvMeta, now: Instant, inline: bool) {
        self.window.datagrams += 1;
        self.window.bytes += data.len() as u64;
        Figures::add(&self.shared().figures.datagrams_in, 1);
        Figures::add(&self.shared().figures.bytes_in, data.len() as u64);
        let ecn = meta.ecn.and_then(|bits| EcnCodepoint::from_bits(bits as u8));
        let mut answer = Vec::new();
        let event = self.endpoint.handle(now, meta.addr, meta.dst_ip, ecn, BytesMut::from(data), &mut answer);
        match event {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(Some(conn)) = self.conns.get_mut(handle.0) {
                    conn.largest_in = conn.largest_in.max(data.len());
                    conn.quic.handle_event(event);
                    self.touch(handle.0);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) if inline => self.knocks.push((incoming, answer)),
            Some(DatagramEvent::NewConnection(incoming)) => self.knock(incoming, now, answer),
            Some(DatagramEvent::Response(transmit)) => self.send_answer(&transmit, &answer),
            None => {}
        }
    }

    /// A new connection asks to be let in.
    pub fn knock(&mut self, incoming: Incoming, now: Instant, mut answer: Vec<u8>) {
        let figures = &self.turn.shared.figures;
        let full = self.live >= self.door.connections_max || self.half_open >= self.door.half_open_max;
        if !self.accepting || full {
            Figures::add(&figures.refused, 1);
            let transmit = self.endpoint.refuse(incoming, &mut answer);
            return self.send_answer(&transmit, &answer);
        }
        if self.half_open >= self.door.retry_above && !incoming.remote_address_validated() {
            Figures::add(&figures.retries, 1);
            if let Ok(transmit) = self.endpoint.retry(incoming, &mut answer) {
                self.send_answer(&transmit, &answer);
            }
            return;
        }
        let near = incoming.remote_address().ip().to_canonical().is_loopback();
        let config = self.server.as_ref().map(|both| both[usize::from(near)].clone());
        match self.endpoint.accept(incoming, now, &mut answer, config) {
            Ok((handle, quic)) => {
                let number = self.next_number.fetch_add(1, Relaxed);
                self.add(handle, number, quic, now);
            }
            Err(why) => {
                Figures::add(&self.turn.shared.figures.refused, 1);
                if let Some(transmit) = why.response {
                    self.send_answer(&transmit, &answer);
                }
            }
        }
    }

    // -- datagrams out ------------------------------------------------------------------------------------------------

    /// False if the system takes no more now.
    fn send(&self, transmit: &Transmit, contents: &[u8]) -> bool {
        let datagram = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|bits| quinn_udp::EcnCodepoint::from_bits(bits as u8)),
            contents: &contents[..transmit.size],
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        match self.udp.try_send(UdpSockRef::from(&self.socket), &datagram) {
            Err(why) if why.kind() == ErrorKind::WouldBlock => return false,
            // Any other failure is a lost datagram: too large a probe, no route. QUIC sends again, or gives up in time.
            Ok(()) | Err(_) => {}
        }
        let figures = &self.shared().figures;
        let count = transmit.segment_size.map_or(1, |segment| transmit.size.div_ceil(segment));
        Figures::add(&figures.datagrams_out, count as u64);
        Figures::add(&figures.bytes_out, transmit.size as u64);
        true
    }

    /// An answer of the endpoint itself. It is lost if the system is busy: the peer asks again.
    fn send_answer(&self, transmit: &Transmit, contents: &[u8]) {
        let _sent = self.send(transmit, contents);
    }

    pub fn send_unsent(&mut self) {
        if let Some(transmit) = self.unsent.take() {
            if !self.send(&transmit, &self.output) {
                self.unsent = Some(transmit);
            }
        }
    }

    /// Every touched connection sends its share; who has more stays in the line, behind the others.
    pub fn transmit(&mut self, now: Instant) {
        for _ in 0..self.dirty.len() {
            if self.unsent.is_some() {
                break;
            }
            let Some(handle) = self.dirty.pop_front() else { break };
            let more = self.transmit_one(handle, now);
            if let Some(Some(conn)) = self.conns.get_mut(handle) {
                conn.dirty = more;
                if more {
                    self.dirty.push_back(handle);
                }
            }
            self.arm(handle);
        }
    }

    /// True if the connection may have more to send.
    fn transmit_one(&mut self, handle: usize, now: Instant) -> bool {
        for _ in 0..SENDS_MAX {
            let Some(Some(conn)) = self.conns.get_mut(handle) else { return false };
            let fit = SEND_BYTES_MAX / usize::from(conn.quic.current_mtu()).max(1);
            let most = self.udp.max_gso_segments().min(SEND_DATAGRAMS_MAX).min(fit).max(1);
            self.output.clear();
            let Some(transmit) = conn.quic.poll_transmit(now, most, &mut self.output) else { return false };
            if !self.send(&transmit, &self.output) {
                self.unsent = Some(transmit);
                return true;
            }
            self.window.bytes += transmit.size as u64;
        }
        true
    }
}
