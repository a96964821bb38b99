//! `millrace serve`: a page that shows the simulation, the devices, resident kernels and benchmarks, live.

mod frame;
mod guard;
mod http;
mod kernels;
mod runs;
mod watched;
mod world;

use std::{
    io::Write as _,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, OnceLock, atomic::AtomicUsize},
};

use clap::Args;
use tokio::sync::Notify;

pub(crate) use self::world::Settings;
use self::{guard::Guard, http::Shared, world::World};
use crate::{
    Failure,
    wave::{Content, How},
};

#[derive(Args)]
pub(crate) struct Options {
    /// Where to listen on this machine; 0 takes any that is free
    #[arg(long, default_value_t = 8417)]
    port: u16,
    /// Listen to other machines, too, at this address, as 0.0.0.0; needs --token
    #[arg(long, value_name = "ADDRESS", requires = "token")]
    listen: Option<IpAddr>,
    /// What a browser has to know: the page is then at /?token=TOKEN
    #[arg(long)]
    token: Option<String>,
    /// Cells on each side of the room
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=i64::from(world::MAX_SIZE)))]
    size: u32,
    /// Where the simulation begins: a device by id or kind
    #[arg(long, default_value = "cpu")]
    device: String,
    /// How the steps are done at the beginning
    #[arg(long, value_enum, default_value_t = How::Resident)]
    engine: How,
    /// Open the page in a browser
    #[arg(long)]
    open: bool,
}

impl Options {
    fn settings(&self) -> Settings {
        Settings {
            size: self.size,
            device: self.device.clone(),
            engine: self.engine,
            scene: Content::Slits,
            speed: 2,
            damping: 1.0,
            wavelength: 8.0,
            slice: self.size / 2,
            paused: false,
        }
    }
}

static STOP: OnceLock<Arc<Notify>> = OnceLock::new();

/// Asks the server to stop; says whether there is one.
pub(crate) fn stop() -> bool {
    STOP.get().map(|stop| stop.notify_one()).is_some()
}

pub(crate) fn serve(options: &Options) -> Result<(), Failure> {
    if options.token.as_ref().is_some_and(|token| token.len() < 8) {
        return Err(Failure::Usage("a token has at least eight characters".to_owned()));
    }
    let token = options.token.as_ref().map_or_else(String::new, |token| format!("/?token={token}"));
    begin(options.settings(), options.listen, options.port, options.token.clone(), |address| {
        let url = format!("http://{address}{token}");
        say(&format!("the page is at {url}\nCtrl-C ends it"));
        if options.open {
            browse(&url);
        }
    })
}

/// The page for `millrace wave`.
pub(crate) fn watch(settings: Settings) -> Result<(), Failure> {
    begin(settings, None, 0, None, |address| {
        let url = format!("http://{address}");
        say(&format!("the room is at {url}; --headless runs here instead, Ctrl-C ends it"));
        browse(&url);
    })
}

/// Says something to whoever started the server, who may have stopped listening.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn browse(url: &str) {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let quiet = std::process::Stdio::null;
    let started = std::process::Command::new(program).arg(url).stdout(quiet()).stderr(quiet()).spawn();
    if started.is_err() {
        say("no browser was found; open the address in one");
    }
}

fn begin(
    settings: Settings,
    listen: Option<IpAddr>,
    port: u16,
    token: Option<String>,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), Failure> {
    // A device that is not there has its own exit code.
    let devices = millrace::runtime();
    if settings.engine != How::Reference {
        drop(devices.open(&settings.device)?);
    }
    let world = World::start(devices, settings).map_err(Failure::Failed)?;
    let stop = STOP.get_or_init(Arc::default).clone();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Failed(error.to_string()))?;
    let served = runtime.block_on(async {
        let address = SocketAddr::new(listen.unwrap_or(Ipv4Addr::LOCALHOST.into()), port);
        let listener = tokio::net::TcpListener::bind(address).await;
        let listener = listener.map_err(|error| {
            let next = "take another --port, or 0 for any that is free";
            Failure::Failed(format!("cannot listen at {address}: {error}; {next}"))
        })?;
        let shared = Shared {
            world,
            kernels: Arc::default(),
            runs: Arc::default(),
            watched: Arc::default(),
            pages: Arc::new(AtomicUsize::new(0)),
        };
        let runs = shared.runs.clone();
        ready(listener.local_addr().unwrap_or(address));
        let router = http::router(shared, Guard { token });
        let served = tokio::select! {
            served = axum::serve(listener, router) => served,
            () = stop.notified() => Ok(()),
        };
        runs.stop();
        served.map_err(|error| Failure::Failed(error.to_string()))
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    served
}
