//! The smallest resident kernel: it is launched once, and answers in well under a microsecond.

#![allow(clippy::print_stdout, reason = "an example talks")]

use millrace::prelude::*;

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Pair {
    a: f32,
    b: f32,
}

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Sum {
    value: f32,
}

struct Adder;

impl Handler for Adder {
    type Message = Pair;
    type Reply = Sum;
    type State = ();
    const WGSL: Option<&'static str> = Some("return Sum(message.a + message.b);");
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), pair: &Pair, _: &mut Scope<'_, Sum>) -> Sum {
        Sum { value: pair.a + pair.b }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let adder = millrace::runtime().open("cpu")?.launch(Adder, LaunchOptions::default())?;
    let sum = adder.ask(Pair { a: 1.5, b: 2.0 })?;
    println!("1.5 + 2 = {}", sum.value);
    assert_eq!(sum.value, 3.5);
    Ok(())
}
