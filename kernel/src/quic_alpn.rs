//! TLS of a QUIC server that asks for no application protocol (ALPN) and takes a client that offers one at its word.
//!
//! rustls refuses such a client when the server names none, and must know the names before it reads the first byte. So the
//! ClientHello is held until it is whole, and the session starts with the first name in it. Everything else is rustls's.
//!
//!     | u8 1 | u24 length | u16 version | 32 random | u8 session | u16 ciphers | u8 compressions | u16 extensions |
//!     extension: | u16 type | u16 length | ... |, type 16: | u16 names | u8 length | name | ...

use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{
    self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError};
use std::any::Any;
use std::sync::Arc;

const CLIENT_HELLO: u8 = 1;
const HEAD_BYTES: usize = 4;
const ALPN: u16 = 16;
/// A longer ClientHello goes to rustls as it comes, and is refused there if it offers a protocol.
const HELLO_BYTES_MAX: usize = 16 << 10;

pub struct AnyProtocol {
    plain: Arc<QuicServerConfig>,
    tls: rustls::ServerConfig,
}

impl AnyProtocol {
    pub fn new(tls: rustls::ServerConfig) -> Result<AnyProtocol, String> {
        let plain = QuicServerConfig::try_from(tls.clone());
        let plain = Arc::new(plain.map_err(|why| format!("TLS for QUIC is not available: {why}"))?);
        Ok(AnyProtocol { plain, tls })
    }

    /// A session for a client that offers this protocol; None cannot be, since the plain one was made of the same parts.
    fn session_for(&self, name: &[u8], version: u32, params: &TransportParameters) -> Option<Box<dyn Session>> {
        let mut tls = self.tls.clone();
        tls.alpn_protocols = vec![name.to_vec()];
        let config = Arc::new(QuicServerConfig::try_from(tls).ok()?);
        Some(crypto::ServerConfig::start_session(config, version, params))
    }
}

impl crypto::ServerConfig for AnyProtocol {
    fn initial_keys(&self, version: u32, dst_cid: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.plain.initial_keys(version, dst_cid)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.plain.retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(self: Arc<Self>, version: u32, params: &TransportParameters) -> Box<dyn Session> {
        let inner = crypto::ServerConfig::start_session(self.plain.clone(), version, params);
        let first = Box::new(First { config: self, version, params: *params, hello: Vec::new() });
        Box::new(ServerSession { inner, first: Some(first) })
    }
}

/// What is needed until the ClientHello is whole.
struct First {
    config: Arc<AnyProtocol>,
    version: u32,
    params: TransportParameters,
    hello: Vec<u8>,
}

struct ServerSession {
    inner: Box<dyn Session>,
    first: Option<Box<First>>,
}

/// Takes fields off the front; None when they are not there.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(head)
    }

    fn number(&mut self, bytes: usize) -> Option<usize> {
        Some(self.take(bytes)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    }

    fn counted(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let length = self.number(bytes)?;
        self.take(length)
    }
}

fn is_whole(hello: &[u8]) -> bool {
    let mut fields = Fields(hello);
    let other = hello.first().is_some_and(|kind| *kind != CLIENT_HELLO);
    let counted = fields.take(1).and_then(|_| fields.counted(3)).is_some();
    other || hello.len() > HELLO_BYTES_MAX || (hello.len() >= HEAD_BYTES && counted)
}

/// The first protocol a ClientHello offers.
fn first_protocol(hello: &[u8]) -> Option<&[u8]> {
    let mut fields = Fields(hello);
    fields.take(HEAD_BYTES + 2 + 32)?;
    fields.counted(1)?;
    fields.counted(2)?;
    fields.counted(1)?;
    let mut extensions = Fields(fields.counted(2)?);
    loop {
        let kind = extensions.number(2)?;
        let body = extensions.counted(2)?;
        if kind == usize::from(ALPN) {
            let mut names = Fields(Fields(body).counted(2)?);
            return names.counted(1).filter(|name| !name.is_empty());
        }
    }
}

impl Session for ServerSession {
    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        let Some(first) = &mut self.first else { return self.inner.read_handshake(buf) };
        first.hello.extend_from_slice(buf);
        if !is_whole(&first.hello) {
            return Ok(false);
        }
        if let Some(name) = first_protocol(&first.hello) {
            if let Some(session) = first.config.session_for(name, first.version, &first.params) {
                self.inner = session;
            }
        }
        let hello = std::mem::take(&mut first.hello);
        self.first = None;
        self.inner.read_handshake(&hello)
    }

    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        self.inner.initial_keys(dst_cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.inner.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.inner.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.inner.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.inner.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.inner.transport_parameters()
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        self.inner.write_handshake(buf)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.inner.next_1rtt_keys()
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.inner.is_valid_retry(orig_dst_cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.inner.export_keying_material(output, label, context)
    }
}
