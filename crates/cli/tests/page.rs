//! The page, driven in a real Chromium, and the server behind it.
//!
//! The browser tests need `chromium` and `chromedriver`; without them they have nothing to say, unless
//! `MILLRACE_TEST_BROWSER=1` asks for them.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    io::{BufRead, BufReader},
    net::TcpStream,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::{Message, WebSocket, client::IntoClientRequest};

/// What never takes that long, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);

/// A server, ended when this is dropped.
struct Server {
    child: Child,
    port: u16,
    /// What it keeps is kept here.
    _home: TempDir,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_millrace"))
            .arg("serve")
            .args(arguments)
            .env("XDG_DATA_HOME", home.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit(':').next().unwrap().split('/').next().unwrap().parse();
        Self { child, port: port.unwrap_or_else(|_| panic!("no address in {line:?}")), _home: home }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn get(&self, path: &str) -> Value {
        ureq::get(&self.url(path)).call().unwrap().body_mut().read_json().unwrap()
    }

    fn steps(&self) -> u64 {
        self.get("/api/wave")["status"]["steps"].as_u64().unwrap()
    }

    fn live(&self) -> WebSocket<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        tungstenite::client(format!("ws://127.0.0.1:{}/live", self.port), stream).unwrap().0
    }

    /// Bytes of memory that the process holds.
    fn resident(&self) -> Option<u64> {
        let pages = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id())).ok()?;
        Some(pages.split_whitespace().nth(1)?.parse::<u64>().ok()? * 4096)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The next frame: its head, and its cells.
fn frame(socket: &mut WebSocket<TcpStream>) -> (Value, Vec<u8>) {
    loop {
        if let Message::Binary(bytes) = socket.read().unwrap() {
            let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
            return (serde_json::from_slice(&bytes[4..4 + length]).unwrap(), bytes[4 + length..].to_vec());
        }
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn frames_come_and_orders_are_obeyed() {
    let server = Server::start(&["--port", "0", "--size", "16"]);
    let mut socket = server.live();
    let (first, cells) = frame(&mut socket);
    assert_eq!((first["settings"]["size"].as_u64(), cells.len()), (Some(16), 256));
    let (later, _) = frame(&mut socket);
    assert!(later["steps"].as_u64() > first["steps"].as_u64());
    socket.send(Message::text(r#"{"view":"3d"}"#)).unwrap();
    until("layers", || (frame(&mut socket).1.len() == 256 * 10).then_some(()));
    let draw = json!({ "do": "draw", "cells": [[9, 3, 8], [10, 3, 8]], "solid": true });
    socket.send(Message::text(draw.to_string())).unwrap();
    until("an obstacle", || (frame(&mut socket).1[3 * 16 + 9] == 128).then_some(()));
    // Nonsense is answered, and nothing happens.
    for nonsense in [r#"{"do":"fly"}"#, "]", r#"{"do":"inject","cell":[1],"amount":1}"#] {
        socket.send(Message::text(nonsense)).unwrap();
        until("an answer", || match socket.read().unwrap() {
            Message::Text(text) => text.contains("error").then_some(()),
            _ => None,
        });
    }
    let order = |order: Value| {
        let ask = ureq::post(&server.url("/api/wave")).config().http_status_as_error(false).build();
        ask.send_json(order).unwrap().status().as_u16()
    };
    assert_eq!(order(json!({ "do": "set", "size": 100_000 })), 422);
    assert_eq!(order(json!({ "do": "set", "weight": 1 })), 400);
    assert_eq!(order(json!({ "do": "set", "speed": 3 })), 202);
    until("the speed", || (frame(&mut socket).0["settings"]["speed"] == json!(3)).then_some(()));
}

#[test]
fn a_device_that_is_destroyed_is_replaced_and_no_step_is_lost() {
    for device in ["cpu", "gpu"] {
        if millrace::runtime().open(device).is_err() {
            continue;
        }
        for engine in ["launch", "resident"] {
            let server = Server::start(&["--port", "0", "--size", "12", "--device", device, "--engine", engine]);
            let mut socket = server.live();
            until("some steps", || (frame(&mut socket).0["steps"].as_u64() > Some(20)).then_some(()));
            let before = frame(&mut socket).0["steps"].as_u64().unwrap();
            socket.send(Message::text(r#"{"do":"destroy"}"#)).unwrap();
            let after = until("a recovery", || {
                let (head, _) = frame(&mut socket);
                (head["recoveries"].as_u64() == Some(1)).then(|| head["steps"].as_u64().unwrap())
            });
            assert!(after >= before, "{device}, {engine}: {after} after {before}");
            until("more steps", || (frame(&mut socket).0["steps"].as_u64() > Some(after + 20)).then_some(()));
        }
    }
}

#[test]
fn strangers_are_refused() {
    let server = Server::start(&["--port", "0", "--size", "8", "--token", "long enough"]);
    let status = |path: &str| {
        let ask = ureq::get(&server.url(path)).config().http_status_as_error(false).build();
        ask.call().unwrap().status().as_u16()
    };
    assert_eq!((status("/"), status("/?token=long%20enough"), status("/healthz")), (401, 401, 200));
    let open = Server::start(&["--port", "0", "--size", "8"]);
    let mut request = format!("ws://127.0.0.1:{}/live", open.port).into_client_request().unwrap();
    request.headers_mut().insert("Origin", "http://evil.example".parse().unwrap());
    let stream = TcpStream::connect(("127.0.0.1", open.port)).unwrap();
    assert!(tungstenite::client(request, stream).is_err(), "a page of somebody else");
    let text = ureq::get(&open.url("/metrics")).call().unwrap().body_mut().read_to_string().unwrap();
    assert!(text.contains("millrace_wave_steps_total "), "{text}");
}

/// How long the fifty look.
const LOOKING: Duration = Duration::from_secs(30);
/// Until all of them are connected and what they need is there.
const SETTLED: Duration = Duration::from_secs(6);

#[allow(clippy::print_stdout, reason = "shown with --nocapture")]
#[test]
fn fifty_who_look_for_half_a_minute_cost_no_memory_and_slow_ones_hold_nobody_up() {
    // Two that do the same on the same machine at the same time, and only one of them is looked at: what the clients and
    // whatever else runs here need, they take from both.
    let [watched, alone] = [(); 2].map(|()| Server::start(&["--port", "0", "--size", "64"]));
    // A few that never read, of large frames: those must not pile up.
    let sleeper = || {
        let mut socket = watched.live();
        socket.send(Message::text(r#"{"view":"3d"}"#)).unwrap();
        socket
    };
    let sleepers: Vec<_> = (0..5).map(|_| sleeper()).collect();
    let end = Instant::now() + LOOKING;
    let (ran, held, frames) = thread::scope(|scope| {
        let look = || {
            let mut socket = watched.live();
            let mut frames = 0;
            while Instant::now() < end {
                frame(&mut socket);
                frames += 1;
            }
            frames
        };
        let looking: Vec<_> = (0..50).map(|_| scope.spawn(look)).collect();
        thread::sleep(SETTLED);
        let steps = || [watched.steps(), alone.steps()];
        let (before, mut held) = (steps(), Vec::new());
        while Instant::now() + Duration::from_secs(1) < end {
            held.extend(watched.resident());
            thread::sleep(Duration::from_millis(200));
        }
        let after = steps();
        let ran = [after[0] - before[0], after[1] - before[1]];
        (ran, held, looking.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<u32>>())
    });
    drop(sleepers);
    assert!(frames.iter().all(|&frames| u64::from(frames) > LOOKING.as_secs()), "less than one a second: {frames:?}");
    // Medians of the first and the last quarter, because a moment's need is no growth.
    let median = |held: &[u64]| {
        let mut held = held.to_vec();
        held.sort_unstable();
        held.get(held.len() / 2).copied().unwrap_or(0)
    };
    let quarter = held.len() / 4;
    let (early, late) = (median(&held[..quarter]), median(&held[held.len() - quarter..]));
    assert!(late < early + (8 << 20), "the server grew from {early} to {late} bytes");
    assert!(ran[0] > ran[1] / 2, "{} steps of the server that is looked at, {} of the other", ran[0], ran[1]);
    println!("steps {ran:?}, bytes {early} and {late}, frames {frames:?}");
}

#[test]
fn a_benchmark_is_followed_and_its_report_is_a_page_of_its_own() {
    let server = Server::start(&["--port", "0", "--size", "8"]);
    let ask = |path: &str| ureq::get(&server.url(path)).config().http_status_as_error(false).build().call().unwrap();
    ureq::post(&server.url("/api/bench")).send_json(json!({ "group": "throughput" })).unwrap();
    let again = ureq::post(&server.url("/api/bench")).config().http_status_as_error(false).build();
    assert_eq!(again.send_json(json!({ "group": "throughput" })).unwrap().status().as_u16(), 422, "one at a time");
    let mut seen = None;
    let name = until("the end of the run", || {
        let current = server.get("/api/bench")["current"].take();
        if current["going"].is_object() {
            seen = Some(current["going"].clone());
        }
        (current["state"] != "running").then(|| {
            assert_eq!(current["state"], "done", "{current}");
            current["name"].as_str().unwrap().to_owned()
        })
    });
    let going = seen.unwrap();
    assert_eq!((&going["suite"], &going["group"]), (&json!("throughput"), &json!("wave_8")), "{going}");
    assert!(going["done"].as_u64() < going["total"].as_u64() && going["side"].is_string(), "{going}");
    assert!(server.get("/api/bench")["reports"].as_array().unwrap().contains(&json!(name)));
    let mut page = ask(&format!("/report/{name}"));
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.contains("default-src 'none'"), "{policy}");
    let text = page.body_mut().read_to_string().unwrap();
    assert!(text.contains("wave_8") && text.contains("targets met") && text.contains(&name));
    assert_eq!(ask("/report/nothing").status().as_u16(), 404);
}

/// A browser that is driven by chromedriver.
struct Browser {
    driver: Child,
    session: String,
}

impl Browser {
    fn start() -> Option<Self> {
        let wanted = std::env::var_os("MILLRACE_TEST_BROWSER").is_some();
        let started = Command::new("chromedriver").arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut driver = match started {
            Ok(driver) => driver,
            Err(error) if wanted => panic!("chromedriver: {error}"),
            Err(_) => return None,
        };
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = until("chromedriver's port", || {
            let line = lines.next()?.unwrap();
            line.strip_suffix('.')?.rsplit_once("on port ").map(|(_, port)| port.to_owned())
        });
        thread::spawn(move || lines.for_each(drop));
        let arguments =
            ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,1200"];
        let wanted = json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": { "args": arguments } } } });
        let url = format!("http://127.0.0.1:{port}/session");
        let answer: Value = ureq::post(&url).send_json(wanted).unwrap().body_mut().read_json().unwrap();
        Some(Self { driver, session: format!("{url}/{}", answer["value"]["sessionId"].as_str().unwrap()) })
    }

    fn tell(&self, path: &str, body: Value) -> Value {
        let url = format!("{}/{path}", self.session);
        let mut answer = ureq::post(&url).config().http_status_as_error(false).build().send_json(body).unwrap();
        let value: Value = answer.body_mut().read_json().unwrap();
        assert!(answer.status().is_success(), "{path}: {value}");
        value["value"].clone()
    }

    fn run(&self, script: &str) -> Value {
        self.tell("execute/sync", json!({ "script": script, "args": [] }))
    }

    fn wait(&self, what: &str, script: &str) {
        until(what, || (self.run(&format!("return Boolean({script});")) == json!(true)).then_some(()));
    }

    /// Presses on an element, this far from its middle.
    fn press(&self, selector: &str, x: i64, y: i64) {
        let found = self.tell("element", json!({ "using": "css selector", "value": selector }));
        let press = [
            json!({ "type": "pointerMove", "duration": 0, "origin": found, "x": x, "y": y }),
            json!({ "type": "pointerDown", "button": 0 }),
            json!({ "type": "pointerUp", "button": 0 }),
        ];
        self.tell("actions", json!({ "actions": [{ "type": "pointer", "id": "mouse", "actions": press }] }));
    }

    /// Chooses an entry of a list, as a user does.
    fn choose(&self, id: &str, value: &str) {
        self.run(&format!(
            "const list = document.getElementById('{id}'); list.value = '{value}'; \
             list.dispatchEvent(new Event('change', {{ bubbles: true }}));"
        ));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = ureq::delete(&self.session).call();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

#[test]
fn the_page_works_in_a_browser() {
    let Some(browser) = Browser::start() else { return };
    let server = Server::start(&["--port", "0", "--size", "32"]);
    let port = server.port.to_string();
    browser.tell("url", json!({ "url": server.url("/") }));
    browser.wait("a connection", "document.getElementById('connection').textContent === 'connected'");
    // Connected does not yet mean that a frame has come.
    browser.wait("steps", "status?.steps > 10 && document.getElementById('steps').textContent !== '–'");

    // A click lets sound in: where it was quiet it no longer is.
    browser.choose("scene", "empty");
    browser.run("document.getElementById('pause').click();");
    browser.wait("the pause", "status.settings.paused && status.settings.scene === 'empty'");
    let corner = "document.getElementById('slice').getContext('2d').getImageData(28, 4, 1, 1).data.join()";
    browser.wait("a quiet corner", &format!("{corner} === '255,255,255,255'"));
    let box_ = browser.run("const r = document.getElementById('slice').getBoundingClientRect(); return r.width;");
    let reach = (box_.as_f64().unwrap() * (28.5 / 32.0 - 0.5)) as i64;
    browser.press("#slice", reach, -((box_.as_f64().unwrap() * (0.5 - 4.5 / 32.0)) as i64));
    browser.wait("the sound of the click", &format!("{corner} !== '255,255,255,255'"));
    browser.run("document.getElementById('pause').click();");

    // Another engine, while it runs.
    browser.choose("engine", "launch");
    browser
        .wait("the other engine", "document.querySelector('#timings tr.current th')?.textContent === 'launch on cpu'");
    if millrace::runtime().open("gpu").is_ok() {
        browser.choose("device", "gpu:0");
        let now = "document.querySelector('#timings tr.current th')?.textContent === 'launch on gpu:0'";
        browser.wait("the other device", now);
    }

    // A device that is destroyed.
    browser.press("#tab-devices", 0, 0);
    browser.wait("the device", "document.querySelector('#in-use .healthy')");
    let steps = browser.run("return status.steps;").as_u64().unwrap();
    browser.press("#destroy", 0, 0);
    browser.wait("a fresh device", &format!("status.recoveries === 1 && status.steps >= {steps}"));
    browser.wait("its event", "document.getElementById('events').textContent.includes('generation 2')");

    // A resident kernel answers.
    browser.press("#tab-kernels", 0, 0);
    browser.wait("the kernels", "document.getElementById('kernel-device').options.length > 0");
    browser.press("#launch button", 0, 0);
    browser.wait("a kernel", "document.querySelector('#kernel-list .card form')");
    browser.press("#kernel-list .card form button", 0, 0);
    browser.wait("an answer", "document.querySelector('#kernel-list .card > p').textContent.startsWith('4 after')");
    browser.press("#kernel-list .card .buttons button:nth-child(2)", 0, 0);
    browser.wait("the pause", "document.querySelector('#kernel-list dd').textContent === 'paused'");

    // A benchmark runs, is followed, and has a report.
    browser.press("#tab-bench", 0, 0);
    browser.wait("the groups", "document.getElementById('group').options.length > 5");
    browser.choose("group", "around");
    browser.press("#start button", 0, 0);
    browser.wait("its progress", "document.getElementById('run').textContent.includes('turn')");
    browser.wait("its end", "document.getElementById('run').textContent.includes('done')");
    browser.wait("its rows", "document.querySelector('#report table caption')?.textContent.includes('around-')");
    let link = browser.run("return document.querySelector('#reports a').href;").as_str().unwrap().to_owned();
    browser.tell("url", json!({ "url": link }));
    browser.wait("the page of the report", "document.querySelectorAll('.card .row svg').length > 2");
    let wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth";
    browser.wait("nothing beyond the right edge", wide);
    let coloured = "getComputedStyle(document.querySelector('.row.ours svg .bar')).fill !== 'rgb(0, 0, 0)'";
    browser.wait("its style", coloured);
    browser.tell("url", json!({ "url": server.url("/") }));
    browser.wait("a connection again", "document.getElementById('connection').textContent === 'connected'");

    // The server goes away and comes back.
    drop(server);
    browser.wait("the loss", "document.getElementById('connection').className === 'lost'");
    let _server = Server::start(&["--port", &port, "--size", "16"]);
    browser.wait("the return", "document.getElementById('connection').textContent === 'connected'");
    browser.press("#tab-wave", 0, 0);
    browser.wait("the new room", "status?.settings.size === 16");
}
