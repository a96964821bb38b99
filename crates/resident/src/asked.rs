//! Looking for answers.

use crate::{
    Error, Result,
    header::Header,
    layout::{fault, flags},
    port::{Attachment, Port},
    replies::{Looked, Wanted},
};

/// An asker that has not had its answer.
pub(crate) struct Asked<'a> {
    port: &'a Port,
    id: u64,
    answered: bool,
}

impl<'a> Asked<'a> {
    pub(crate) fn new(port: &'a Port, id: u64) -> Self {
        Self { port, id, answered: false }
    }

    /// Looks once for the answer.
    #[inline]
    pub(crate) fn look<R>(
        &mut self,
        decode: &impl Fn(&Header, &[u8], Option<Attachment>) -> Result<R>,
    ) -> Option<Result<R>> {
        let found = look(self.port, Wanted::Answer(self.id), decode);
        self.answered |= found.is_some();
        found
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.port.give_up(self.id);
        }
    }
}

/// Looks once for what is wanted; an error if the kernel has ended and there is no such thing.
#[inline]
fn look<R>(
    port: &Port,
    wanted: Wanted,
    decode: &impl Fn(&Header, &[u8], Option<Attachment>) -> Result<R>,
) -> Option<Result<R>> {
    // Before the ring: what the kernel said before it ended is there.
    let ended = port.status().is_ended();
    let looked = port.look(wanted, &mut |header, bytes, attachment| {
        port.clock.see(header.clock);
        decode(header, bytes, attachment)
    });
    match looked {
        Looked::Found(result) => Some(result),
        Looked::Nothing if ended => Some(Err(port.ended())),
        Looked::Nothing | Looked::Elsewhere => None,
    }
}

/// Looks once for a message that nobody asked for.
pub(crate) fn look_for_any<R>(
    port: &Port,
    decode: &impl Fn(&Header, &[u8], Option<Attachment>) -> Result<R>,
) -> Option<Result<R>> {
    look(port, Wanted::Any, decode)
}

/// What an answer says if it is no answer.
#[inline(always)]
pub(crate) fn failure(header: &Header, attachment: Option<&Attachment>) -> Result<()> {
    if header.flags & flags::FAILED == 0 { Ok(()) } else { Err(reason_of(header, attachment)) }
}

#[cold]
fn reason_of(header: &Header, attachment: Option<&Attachment>) -> Error {
    let reason = match attachment {
        Some(Attachment::Reason(reason)) => reason.clone(),
        _ => fault::text(header.buffer).into(),
    };
    match header.buffer {
        fault::PANIC => Error::Panicked(reason),
        fault::NO_PAYLOAD => Error::NoPayload,
        _ => Error::Corrupt(reason),
    }
}
