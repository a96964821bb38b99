//! Looking for answers.

use crate::{
    Error, Result,
    header::Header,
    layout::{fault, flags},
    port::{Attachment, Port},
    replies::{Looked, Wanted},
};

/// An asker, and its answer once that was found.
pub(crate) struct Asked<'a, R> {
    port: &'a Port,
    id: u64,
    answer: Option<Result<R>>,
    answered: bool,
}

impl<'a, R> Asked<'a, R> {
    pub(crate) fn new(port: &'a Port, id: u64) -> Self {
        Self { port, id, answer: None, answered: false }
    }

    /// Looks once for the answer.
    #[inline]
    pub(crate) fn look(&mut self, decode: &impl Fn(&Header, &[u8], Option<Attachment>) -> Result<R>) -> Option<()> {
        self.answered |= look(self.port, Wanted::Answer(self.id), &mut self.answer, decode);
        self.answered.then_some(())
    }

    /// What it was told.
    #[inline]
    pub(crate) fn answer(mut self) -> Result<R> {
        match self.answer.take() {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(error),
            None => Err(self.port.ended()), // not without having looked
        }
    }
}

impl<R> Drop for Asked<'_, R> {
    fn drop(&mut self) {
        if !self.answered {
            self.port.give_up(self.id);
        }
    }
}

/// Looks once for what is wanted; an error if the kernel has ended and there is no such thing. Says whether it found either.
#[inline]
fn look<R>(
    port: &Port,
    wanted: Wanted,
    into: &mut Option<Result<R>>,
    decode: &impl Fn(&Header, &[u8], Option<Attachment>) -> Result<R>,
) -> bool {
    // Before the ring: what the kernel said before it ended is there.
    let ended = port.status().is_ended();
    let looked = port.look(wanted, &mut |header, bytes, attachment| {
        port.clock.see(header.clock);
        *into = Some(decode(header, bytes, attachment));
    });
    if looked == Looked::Nothing && ended {
        *into = Some(Err(port.ended()));
    }
    looked == Looked::Found || looked == Looked::Nothing && ended
}

/// Looks once for a message that nobody asked for.
pub(crate) fn look_for_any<R>(
    port: &Port,
    decode: &impl Fn(&Header, &[u8], Option<Attachment>) -> Result<R>,
) -> Option<Result<R>> {
    let mut found = None;
    look(port, Wanted::Any, &mut found, decode);
    found
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
