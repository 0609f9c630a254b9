//! TLS and transport settings of the QUIC endpoint: PEM texts in, configurations of quinn out, or a text that says what is
//! wrong with them.
//!
//! TLS 1.3 only, no 0-RTT, no session tickets (a resumed session would outlive a change of certificates), no ALPN
//! of ours (see `quic_alpn.rs`). Nothing is read from files except the system's roots, when a client names no CA.

use crate::quic_alpn::AnyProtocol;
use quinn_proto::congestion::CubicConfig;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::crypto::{CryptoError, HmacKey};
use quinn_proto::{
    ClientConfig, EndpointConfig, HashedConnectionIdGenerator, IdleTimeout, MtuDiscoveryConfig, ServerConfig,
    TransportConfig, VarInt,
};
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use std::time::Duration;

/// The largest datagram looked for where both ends are on this machine: what fits macOS's loopback. It is probed for, not
/// assumed: behind a forwarded port a loopback address may stand for a network.
const LOOPBACK_MTU_BYTES: u16 = 16_336;
const LOOPBACK_MTU_STEP_BYTES: u16 = 1_024;
/// The largest datagram looked for on a network: an Ethernet frame with IPv6 and UDP.
const NETWORK_MTU_BYTES: u16 = 1_452;
/// Assumed until it is measured; what is lost of a handshake is sent again after three times this.
const LOOPBACK_RTT: Duration = Duration::from_millis(30);
const LOOPBACK_INITIAL_WINDOW_BYTES: u64 = 256 << 10;
/// Handshake messages out of order a peer may make us keep.
const CRYPTO_BUFFER_BYTES: usize = 16 << 10;

pub struct Limits {
    pub streams_max: u64,
    pub uni_max: u64,
    pub idle_ms: u64,
    pub keep_alive_ms: u64,
    pub stream_window: u64,
    pub connection_window: u64,
    pub send_window: u64,
}

/// Streams a peer may open before it has shown that it needs more: quinn keeps a slot for each that it allows.
pub const STREAMS_FIRST: u64 = 16;

fn varint(value: u64) -> VarInt {
    VarInt::from_u64(value).unwrap_or(VarInt::MAX)
}

impl Limits {
    pub fn transport(&self, loopback: bool) -> Arc<TransportConfig> {
        let mut config = TransportConfig::default();
        config
            .max_concurrent_bidi_streams(varint(self.streams_max.min(STREAMS_FIRST)))
            .max_concurrent_uni_streams(varint(self.uni_max.min(STREAMS_FIRST)))
            .max_idle_timeout((self.idle_ms > 0).then(|| IdleTimeout::from(varint(self.idle_ms))))
            .keep_alive_interval((self.keep_alive_ms > 0).then(|| Duration::from_millis(self.keep_alive_ms)))
            .stream_receive_window(varint(self.stream_window))
            .receive_window(varint(self.connection_window))
            .send_window(self.send_window)
            .crypto_buffer_size(CRYPTO_BUFFER_BYTES)
            .datagram_receive_buffer_size(None);
        let mut search = MtuDiscoveryConfig::default();
        if loopback {
            let mut cubic = CubicConfig::default();
            cubic.initial_window(LOOPBACK_INITIAL_WINDOW_BYTES);
            config.congestion_controller_factory(Arc::new(cubic)).initial_rtt(LOOPBACK_RTT);
            search.upper_bound(LOOPBACK_MTU_BYTES).minimum_change(LOOPBACK_MTU_STEP_BYTES);
        } else {
            search.upper_bound(NETWORK_MTU_BYTES);
        }
        config.mtu_discovery_config(Some(search));
        Arc::new(config)
    }
}

/// Signs connection ids for stateless resets.
struct ResetKey(blake3::Hash);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.copy_from_slice(blake3::keyed_hash(self.0.as_bytes(), data).as_bytes());
    }

    fn signature_len(&self) -> usize {
        blake3::OUT_LEN
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        // Hashes compare in constant time.
        let right = blake3::keyed_hash(self.0.as_bytes(), data);
        let given: [u8; blake3::OUT_LEN] = signature.try_into().map_err(|_| CryptoError)?;
        if right == given { Ok(()) } else { Err(CryptoError) }
    }
}

/// `key`: the private key of a server, or nothing. What a server says of connections that it does not know follows from it,
/// so that peers believe it after a restart too, and know at once that theirs are gone.
pub fn endpoint_config(key: &[u8]) -> Result<EndpointConfig, String> {
    let mut config = EndpointConfig::default();
    if !key.is_empty() {
        let secret = private_key(key)?;
        let reset = blake3::derive_key("quintet 2026-11-16 QUIC stateless resets", secret.secret_der());
        let ids = blake3::derive_key("quintet 2026-11-16 QUIC connection ids", secret.secret_der());
        let ids = u64::from_le_bytes(ids[..8].try_into().expect("eight bytes"));
        config.reset_key(Arc::new(ResetKey(blake3::Hash::from_bytes(reset))));
        config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
    }
    config.max_udp_payload_size(u16::MAX - 8).expect("within what QUIC allows");
    Ok(config)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|why| format!("the {what} is not readable PEM: {why}"))?;
    if found.is_empty() {
        return Err(format!("the {what} holds no certificate: it needs a PEM block BEGIN CERTIFICATE"));
    }
    Ok(found)
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem)
        .map_err(|why| format!("the key is not readable PEM (PKCS #8, PKCS #1 or SEC 1): {why}"))
}

fn roots(pem: &[u8], what: &str) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem, what)? {
        store.add(certificate).map_err(|why| format!("a certificate of the {what} cannot be used: {why}"))?;
    }
    Ok(store)
}

/// The configurations of a server: for peers on a network, and for those on this machine.
pub fn server(
    certificate: &[u8],
    key: &[u8],
    client_ca: &[u8],
    limits: &Limits,
) -> Result<Box<[Arc<ServerConfig>; 2]>, String> {
    let chain = certificates(certificate, "certificate")?;
    let builder = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|why| format!("TLS 1.3 is not available: {why}"))?;
    let builder = if client_ca.is_empty() {
        builder.with_no_client_auth()
    } else {
        let store = Arc::new(roots(client_ca, "client CA")?);
        let verifier = WebPkiClientVerifier::builder_with_provider(store, provider()).build();
        builder.with_client_cert_verifier(verifier.map_err(|why| format!("the client CA cannot be used: {why}"))?)
    };
    let mut tls = builder
        .with_single_cert(chain, private_key(key)?)
        .map_err(|why| format!("the certificate and its key cannot be used: {why}"))?;
    tls.max_early_data_size = 0;
    tls.send_tls13_tickets = 0;
    let mut network = ServerConfig::with_crypto(Arc::new(AnyProtocol::new(tls)?));
    network.transport_config(limits.transport(false)).migration(true);
    let mut machine = network.clone();
    machine.transport_config(limits.transport(true));
    Ok(Box::new([Arc::new(network), Arc::new(machine)]))
}

/// The TLS side of a client; it is the same for all connections that trust the same CA and show the same certificate.
pub fn client(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<Arc<QuicClientConfig>, String> {
    let store = if ca.is_empty() { system_roots()? } else { roots(ca, "CA")? };
    let builder = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|why| format!("TLS 1.3 is not available: {why}"))?
        .with_root_certificates(store);
    let mut tls = if certificate.is_empty() {
        builder.with_no_client_auth()
    } else {
        builder
            .with_client_auth_cert(certificates(certificate, "certificate")?, private_key(key)?)
            .map_err(|why| format!("the certificate and its key cannot be used: {why}"))?
    };
    tls.resumption = rustls::client::Resumption::disabled();
    let crypto = QuicClientConfig::try_from(tls).map_err(|why| format!("TLS for QUIC is not available: {why}"))?;
    Ok(Arc::new(crypto))
}

pub fn client_config(crypto: Arc<QuicClientConfig>, transport: Arc<TransportConfig>) -> Box<ClientConfig> {
    let mut config = ClientConfig::new(crypto);
    config.transport_config(transport);
    Box::new(config)
}

fn system_roots() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(found.certs);
    if store.is_empty() {
        return Err("this system has no root certificates that can be read: name a CA".to_owned());
    }
    Ok(store)
}
