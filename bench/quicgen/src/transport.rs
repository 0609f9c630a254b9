//! QUIC endpoints: quinn as it comes, and with the settings of the broker where they are asked for.

use crate::Outcome;
use crate::options::Options;
use quinn::congestion::CubicConfig;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, IdleTimeout, ServerConfig, TokioRuntime};
use quinn::{MtuDiscoveryConfig, TransportConfig, VarInt};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "localhost";
const UNI_STREAMS_MAX: u32 = 4096; // as many subscriptions as a connection may have
const IDLE: Duration = Duration::from_secs(60);
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const PAYLOAD_MAX: u16 = 65_527; // of a UDP datagram

const SEGMENTS: usize = 10;

/// What differs from quinn's defaults. `--mtu N`: datagrams of N bytes from the start. `--window N`: bytes a stream, a
/// connection and the sender may have under way. `--burst N`: bytes that may be under way before anything is
/// acknowledged. `--buffer N`: bytes the system keeps of a socket, in each direction.
#[derive(Clone, Default)]
pub struct Tuning {
    mtu: Option<u16>,
    window: Option<u32>,
    burst: Option<u64>,
    buffer: Option<usize>,
}

impl Tuning {
    pub fn take(options: &mut Options) -> Outcome<Tuning> {
        let (mtu, window) = (options.optional("mtu")?, options.optional("window")?);
        Ok(Tuning { mtu, window, burst: options.optional("burst")?, buffer: options.optional("buffer")? })
    }

    fn transport(&self) -> Outcome<Arc<TransportConfig>> {
        let mut config = TransportConfig::default();
        config.max_concurrent_uni_streams(UNI_STREAMS_MAX.into());
        config.max_idle_timeout(Some(IdleTimeout::try_from(IDLE)?)).keep_alive_interval(Some(KEEP_ALIVE));
        if let Some(mtu) = self.mtu {
            let mut search = MtuDiscoveryConfig::default();
            search.upper_bound(mtu);
            config.initial_mtu(mtu).mtu_discovery_config(Some(search));
            // quinn sends up to ten datagrams in one call, whose bytes together the system bounds.
            config.enable_segmentation_offload(usize::from(mtu) * SEGMENTS <= usize::from(PAYLOAD_MAX));
        }
        if let Some(burst) = self.burst {
            let mut cubic = CubicConfig::default();
            cubic.initial_window(burst);
            config.congestion_controller_factory(Arc::new(cubic));
        }
        if let Some(window) = self.window {
            config.stream_receive_window(window.into()).receive_window(VarInt::from_u32(window));
            config.send_window(window.into());
        }
        Ok(Arc::new(config))
    }

    fn endpoint(&self) -> Outcome<EndpointConfig> {
        let mut config = EndpointConfig::default();
        if self.mtu.is_some() {
            config.max_udp_payload_size(PAYLOAD_MAX)?;
        }
        Ok(config)
    }

    fn socket(&self) -> Outcome<UdpSocket> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        if let Some(bytes) = self.buffer {
            let options = socket2::SockRef::from(&socket);
            options.set_recv_buffer_size(bytes)?;
            options.set_send_buffer_size(bytes)?;
        }
        Ok(socket)
    }
}

/// A server with a certificate made now and written to a file for its clients.
pub fn server(tuning: &Tuning, certificate: &str) -> Outcome<Endpoint> {
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()])?;
    std::fs::write(certificate, made.cert.pem())?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut config = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key.into())?;
    config.transport_config(tuning.transport()?);
    Ok(Endpoint::new(tuning.endpoint()?, Some(config), tuning.socket()?, Arc::new(TokioRuntime))?)
}

/// Where clients connect to, and whom they trust.
#[derive(Clone)]
pub struct Target {
    address: SocketAddr,
    config: ClientConfig,
    tuning: Tuning,
}

impl Target {
    /// `--addr HOST:PORT --ca FILE` and what Tuning takes.
    pub fn take(options: &mut Options) -> Outcome<Target> {
        let address = options.need("addr")?;
        let tuning = Tuning::take(options)?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(options.need::<String>("ca")?)? {
            roots.add(certificate?)?;
        }
        let mut config = ClientConfig::with_root_certificates(Arc::new(roots))?;
        config.transport_config(tuning.transport()?);
        Ok(Target { address, config, tuning })
    }

    /// A socket of its own, in the runtime of the caller.
    pub fn endpoint(&self) -> Outcome<Endpoint> {
        let socket = self.tuning.socket()?;
        let mut endpoint = Endpoint::new(self.tuning.endpoint()?, None, socket, Arc::new(TokioRuntime))?;
        endpoint.set_default_client_config(self.config.clone());
        Ok(endpoint)
    }

    pub async fn connect(&self, endpoint: &Endpoint) -> Outcome<Connection> {
        Ok(endpoint.connect(self.address, NAME)?.await?)
    }
}

/// How a connection fared, for the JSON line: its datagram size, and what it lost.
pub fn path(connection: &Connection) -> String {
    let path = connection.stats().path;
    format!("\"mtu\":{},\"lost\":{},\"sent_packets\":{}", path.current_mtu, path.lost_packets, path.sent_packets)
}
