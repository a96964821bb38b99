//! What the tests of resident kernels share.

use millrace::{prelude::*, resident::Residency};

/// A GPU, if there is one.
pub(crate) fn gpu() -> Option<Device> {
    millrace::runtime().open("gpu").ok()
}

/// Whether its driver ends loops early.
pub(crate) fn ends_loops(device: &Device) -> bool {
    device.info().findings.iter().any(|finding| finding.contains("ends loops early"))
}

/// Both ways of staying.
pub(crate) fn ways() -> [LaunchOptions; 2] {
    [LaunchOptions::default(), LaunchOptions::default().residency(Residency::Batched)]
}

/// A message for resident kernels.
#[derive(Clone, Copy, Debug, PartialEq, Message)]
#[repr(C)]
pub(crate) struct Number {
    pub(crate) value: u32,
}

/// Answers with twice the number.
pub(crate) struct Double;

impl Handler for Double {
    type Message = Number;
    type Reply = Number;
    type State = ();
    const WGSL: Option<&'static str> = Some("return Number(message.value * 2u);");
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), message: &Number, _: &mut Scope<'_, Number>) -> Number {
        Number { value: message.value.wrapping_mul(2) }
    }
}

/// Counts to the number.
pub(crate) struct Looper;

impl Handler for Looper {
    type Message = Number;
    type Reply = Number;
    type State = Number;
    const WGSL: Option<&'static str> = Some(
        "
        var n = 0u;
        for (var i = 0u; i < message.value; i++) { n += 1u; }
        (*state).value += n;
        return Number(n);
        ",
    );
    fn state(&self) -> Number {
        Number { value: 0 }
    }
    fn handle(&mut self, state: &mut Number, message: &Number, _: &mut Scope<'_, Number>) -> Number {
        state.value += message.value;
        *message
    }
}
