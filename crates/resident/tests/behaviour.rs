//! What a resident kernel on the CPU does, through the public interface.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    thread,
    time::{Duration, Instant},
};

use millrace_core::Priority;
use millrace_resident::{
    Delivery, Error, Handler, Launch, LaunchOptions, Message, RestartPolicy, Scope, Status, Topic, WaitPolicy,
};
use support::{Counter, Double, Number, cpu, soon};

#[test]
fn an_ask_gets_its_answer_and_a_send_can_be_received() {
    let device = cpu();
    let double = device.launch(Double, LaunchOptions::default()).unwrap();
    for value in 0..1000 {
        assert_eq!(double.ask(Number { value }).unwrap().value, value * 2);
    }
    for value in 0..100 {
        double.send(Number { value }).unwrap();
    }
    for value in 0..100 {
        assert_eq!(double.receive(soon()).unwrap().value, value * 2);
    }
    assert!(double.try_receive().is_none());
    let late = double.receive(Instant::now() + Duration::from_millis(5));
    assert_eq!(late.map(|n| n.value), Err(Error::Deadline));
}
