//! What the server answers: the page, the API behind it, the frames, the metrics.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{
        DefaultBodyLimit, Path, State, WebSocketUpgrade,
        ws::{Message, WebSocket},
    },
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use millrace::{Device, Health};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    guard::{self, Guard},
    kernels::{Command, Kernels, Kind, Pair},
    runs::{Runs, groups},
    watched::Watched,
    world::{MAX_SIZE, Order, World},
};

/// Bytes of a request, and of a message from a page.
const LARGEST: usize = 64 * 1024;
/// Pages that look at once.
const MOST_PAGES: usize = 128;
/// How long a page may take to take a frame.
const SLOWEST: Duration = Duration::from_secs(20);

/// What all requests share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) world: World,
    pub(crate) kernels: Arc<Kernels>,
    pub(crate) runs: Arc<Runs>,
    pub(crate) watched: Arc<Watched>,
    pub(crate) pages: Arc<AtomicUsize>,
}

pub(crate) fn router(shared: Shared, guard: Guard) -> Router {
    Router::new()
        .route("/", get(|| page("text/html; charset=utf-8", include_str!("page/index.html"))))
        .route("/app.js", get(|| page("text/javascript; charset=utf-8", include_str!("page/app.js"))))
        .route("/style.css", get(|| page("text/css; charset=utf-8", include_str!("page/style.css"))))
        .route("/live", get(live))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/metrics", get(metrics))
        .route("/api/wave", get(wave).post(order))
        .route("/api/devices", get(devices))
        .route("/api/kernels", get(kernels).post(launch))
        .route("/api/kernels/{id}/ask", post(ask))
        .route("/api/kernels/{id}/{command}", post(command))
        .route("/api/bench", get(runs).post(start))
        .route("/api/bench/{name}", get(report))
        .route("/report/{name}", get(report_page))
        .layer(DefaultBodyLimit::max(LARGEST))
        .layer(axum::middleware::from_fn_with_state(guard, guard::check))
        .with_state(shared)
}

async fn page(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// An answer that is an error, in words.
fn refused(code: StatusCode, why: impl Into<String>) -> Response {
    (code, Json(json!({ "error": why.into() }))).into_response()
}

/// Runs what may take a while where it holds nobody up.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, Response> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(why)) => Err(refused(StatusCode::UNPROCESSABLE_ENTITY, why)),
        Err(error) => Err(refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}

async fn wave(State(shared): State<Shared>) -> Json<Value> {
    Json(json!({ "status": shared.world.status(), "largest": MAX_SIZE }))
}

async fn order(State(shared): State<Shared>, body: Bytes) -> Response {
    match give(&shared.world, &body) {
        Ok(()) => StatusCode::ACCEPTED.into_response(),
        Err((code, why)) => refused(code, why),
    }
}

/// Hands an order on, if it is one that makes sense.
fn give(world: &World, bytes: &[u8]) -> Result<(), (StatusCode, String)> {
    let order: Order = serde_json::from_slice(bytes).map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
    if let Order::Set(change) = &order {
        world.status().settings.with(change).check().map_err(|why| (StatusCode::UNPROCESSABLE_ENTITY, why))?;
    }
    let busy = || (StatusCode::SERVICE_UNAVAILABLE, "too many orders wait; try again".to_owned());
    if world.order(order) { Ok(()) } else { Err(busy()) }
}

/// A device as the page shows it.
#[derive(Serialize)]
struct Shown {
    id: String,
    name: String,
    state: &'static str,
    reason: Option<String>,
    generation: u32,
    memory: u64,
    budget: u64,
    waiting: usize,
    submissions: usize,
    bytes_in_flight: u64,
    commands: u64,
    busy: f64,
    temperature: Option<f32>,
    uptime: f64,
}

/// Commands that a device finished.
fn total_of(health: &Health) -> u64 {
    let counts = &health.counts;
    counts.writes + counts.reads + counts.copies + counts.fills + counts.launches + counts.others
}

fn show(device: &Device, health: &Health, busy: f64) -> Shown {
    Shown {
        id: device.info().id.clone(),
        name: device.info().name.clone(),
        state: health.state.name(),
        reason: health.reason.as_deref().map(str::to_owned),
        generation: health.generation,
        memory: health.memory.in_use,
        budget: health.memory.budget,
        waiting: health.waiting,
        submissions: health.submissions_in_flight,
        bytes_in_flight: health.bytes_in_flight,
        commands: total_of(health),
        busy,
        temperature: health.temperature,
        uptime: health.uptime.as_secs_f64(),
    }
}

async fn devices(State(shared): State<Shared>) -> Response {
    let looked = aside(move || {
        let (current, events) = shared.watched.look(shared.world.device());
        let all = millrace::runtime().devices();
        let all: Vec<_> = all
            .iter()
            .map(|found| {
                let why = found.unavailable.as_ref().map(ToString::to_string);
                json!({ "id": found.id, "name": found.name, "unavailable": why })
            })
            .collect();
        let in_use: Vec<_> = current.iter().map(|(device, health, busy)| show(device, health, *busy)).collect();
        Ok(json!({ "all": all, "in_use": in_use, "events": events }))
    });
    looked.await.map_or_else(|refusal| refusal, |value| Json(value).into_response())
}

async fn kernels(State(shared): State<Shared>) -> Response {
    Json(json!({ "kernels": shared.kernels.list() })).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    kind: Kind,
    device: String,
}

async fn launch(State(shared): State<Shared>, body: Bytes) -> Response {
    let wanted: Wanted = match serde_json::from_slice(&body) {
        Ok(wanted) => wanted,
        Err(error) => return refused(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let launched = aside(move || {
        let device = shared.watched.open(&wanted.device)?;
        shared.kernels.launch(wanted.kind, &device)
    });
    launched.await.map_or_else(|refusal| refusal, |id| Json(json!({ "id": id })).into_response())
}

async fn command(State(shared): State<Shared>, Path((id, command)): Path<(u32, Command)>) -> Response {
    let told = aside(move || shared.kernels.command(id, command)).await;
    told.map_or_else(|refusal| refusal, |()| StatusCode::NO_CONTENT.into_response())
}

async fn ask(State(shared): State<Shared>, Path(id): Path<u32>, body: Bytes) -> Response {
    let message: Pair = match serde_json::from_slice(&body) {
        Ok(message) => message,
        Err(error) => return refused(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let answer = aside(move || shared.kernels.ask(id, message)).await;
    let shown = |(answer, took): (super::kernels::Number, u128)| {
        Json(json!({ "answer": answer, "nanoseconds": took })).into_response()
    };
    answer.map_or_else(|refusal| refusal, shown)
}

async fn runs(State(shared): State<Shared>) -> Response {
    let (current, reports) = (shared.runs.current(), shared.runs.reports());
    Json(json!({ "groups": groups(), "current": current, "reports": reports })).into_response()
}

async fn start(State(shared): State<Shared>, Json(wanted): Json<Value>) -> Response {
    let group = wanted["group"].as_str().unwrap_or_default().to_owned();
    let started = aside(move || shared.runs.start(&group)).await;
    started.map_or_else(|refusal| refusal, |run| Json(run).into_response())
}

async fn report(State(shared): State<Shared>, Path(name): Path<String>) -> Response {
    match shared.runs.report(&name) {
        Ok(report) => Json(report).into_response(),
        Err(why) => refused(StatusCode::NOT_FOUND, why),
    }
}

/// The page about a report: it has everything in itself, and is allowed nothing else.
async fn report_page(State(shared): State<Shared>, Path(name): Path<String>) -> Response {
    let kind = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'"),
    ];
    match aside(move || Ok(shared.runs.page(&name))).await {
        Ok(Ok(page)) => (kind, page).into_response(),
        Ok(Err(why)) => refused(StatusCode::NOT_FOUND, why),
        Err(refusal) => refusal,
    }
}

/// A gauge or a counter in Prometheus' text.
fn metric(text: &mut String, name: &str, kind: &str, help: &str, values: &[(String, f64)]) {
    let _ = writeln!(text, "# HELP millrace_{name} {help}\n# TYPE millrace_{name} {kind}");
    for (labels, value) in values {
        let _ = writeln!(text, "millrace_{name}{labels} {value}");
    }
}

async fn metrics(State(shared): State<Shared>) -> Response {
    let looked = aside(move || {
        let (current, _) = shared.watched.look(shared.world.device());
        let status = shared.world.status();
        let mut text = String::new();
        let of = |value: &dyn Fn(&Health) -> f64| -> Vec<(String, f64)> {
            let labels = |device: &Device| format!("{{device=\"{}\"}}", device.info().id);
            current.iter().map(|(device, health, _)| (labels(device), value(health))).collect()
        };
        let healthy = |health: &Health| f64::from(u8::from(health.state.name() == "healthy"));
        metric(&mut text, "device_healthy", "gauge", "Whether the device is healthy.", &of(&healthy));
        let total = |health: &Health| total_of(health) as f64;
        metric(&mut text, "commands_total", "counter", "Commands that the device finished.", &of(&total));
        let busy = |health: &Health| health.busy.as_secs_f64();
        metric(&mut text, "busy_seconds_total", "counter", "How long the device has been working.", &of(&busy));
        let memory = |health: &Health| health.memory.in_use as f64;
        metric(&mut text, "memory_bytes", "gauge", "Bytes of its pool that are in use.", &of(&memory));
        let flight = |health: &Health| health.bytes_in_flight as f64;
        metric(&mut text, "bytes_in_flight", "gauge", "Bytes on their way to or from it.", &of(&flight));
        let waiting = |health: &Health| health.waiting as f64;
        metric(&mut text, "commands_waiting", "gauge", "Commands in the queues of its streams.", &of(&waiting));
        let one = |value: f64| vec![(String::new(), value)];
        metric(&mut text, "wave_steps_total", "counter", "Steps of the wave.", &one(status.steps as f64));
        metric(&mut text, "wave_frames_total", "counter", "Frames of the wave.", &one(status.frames as f64));
        metric(
            &mut text,
            "wave_recoveries_total",
            "counter",
            "Devices that were lost.",
            &one(status.recoveries as f64),
        );
        metric(&mut text, "wave_cells_per_second", "gauge", "Speed of the wave.", &one(status.cells_per_second));
        metric(&mut text, "pages", "gauge", "Pages that look.", &one(shared.pages.load(Ordering::Relaxed) as f64));
        Ok(text)
    });
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    looked.await.map_or_else(|refusal| refusal, |text| (kind, text).into_response())
}

/// One page that looks, for as long as this lives.
struct Looking(Shared, bool);

impl Looking {
    fn begin(shared: Shared) -> Option<Self> {
        let more = |pages: usize| (pages < MOST_PAGES).then_some(pages + 1);
        shared.pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self(shared, false))
    }

    fn look_deep(&mut self, deep: bool) {
        if deep != std::mem::replace(&mut self.1, deep) {
            let count = &self.0.world.deep;
            if deep {
                count.fetch_add(1, Ordering::Relaxed)
            } else {
                count.fetch_sub(1, Ordering::Relaxed)
            };
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.look_deep(false);
        self.0.pages.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn live(State(shared): State<Shared>, upgrade: WebSocketUpgrade) -> Response {
    match Looking::begin(shared) {
        Some(looking) => upgrade.max_message_size(LARGEST).on_upgrade(move |socket| serve(socket, looking)),
        None => refused(StatusCode::SERVICE_UNAVAILABLE, "too many pages look already"),
    }
}

/// Sends frames, as many as the page takes: whoever is slow gets the newest when it is ready for it, and nothing waits.
async fn serve(mut socket: WebSocket, mut looking: Looking) {
    let world = looking.0.world.clone();
    let mut frames = world.frames.clone();
    loop {
        tokio::select! {
            changed = frames.changed() => {
                if changed.is_err() {
                    return; // the simulation has ended
                }
                let frame = frames.borrow_and_update().clone();
                let bytes = if looking.1 { frame.deep } else { frame.flat };
                match tokio::time::timeout(SLOWEST, socket.send(Message::Binary(bytes))).await {
                    Ok(Ok(())) => {}
                    _ => return, // gone, or as good as
                }
            }
            message = socket.recv() => match message {
                Some(Ok(Message::Text(text))) => {
                    let told: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
                    if let Some(view) = told["view"].as_str() {
                        looking.look_deep(view == "3d");
                    } else if let Err((_, why)) = give(&world, text.as_bytes()) {
                        let answer = json!({ "error": why }).to_string();
                        if socket.send(Message::Text(answer.into())).await.is_err() {
                            return;
                        }
                    }
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => {}
            },
        }
    }
}
