//! One command for several streams.

use std::time::Instant;

use super::Stream;
use crate::{
    Error, Result,
    command::{Command, Output, Rejected},
    ticket::Ticket,
};

/// Submits one command to several streams, of one device or of several: the payload is shared, every stream gets a
/// ticket or says why not, and none is skipped. Streams with room get it first; then those that are full are waited
/// for until the deadline.
///
/// A command that names buffers or kernels only fits their device; for streams of several devices, say with
/// [`fan_out_with`] what each of them gets.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// use std::time::{Duration, Instant};
/// let streams = [device.stream()?, device.stream()?];
/// let buffer = device.allocate(4)?;
/// let tickets = millrace::fan_out(&streams, buffer.read(..), Instant::now() + Duration::from_secs(1));
/// for ticket in tickets {
///     ticket?.wait()?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn fan_out<'a>(
    streams: impl IntoIterator<Item = &'a Stream>,
    command: impl Into<Command>,
    deadline: Instant,
) -> Vec<Result<Ticket<Output>, Box<Rejected>>> {
    let streams: Vec<_> = streams.into_iter().collect();
    let (mut command, mut left) = (Some(command.into()), streams.len());
    // The last one gets the command itself: a signal that stayed behind would break its marker.
    let next = |_: &Stream| {
        left -= 1;
        let kept = if left == 0 { command.take().map(Ok) } else { command.as_ref().map(Command::duplicate) };
        kept.unwrap_or(Err(Error::Closed)) // not reached: it is taken once, for the last
    };
    fan_out_with(streams, next, deadline)
}

/// [`fan_out`] with a command made for each stream.
///
/// ```
/// use std::time::{Duration, Instant};
/// let payload = bytes::Bytes::from_static(b"the same bytes on both");
/// let devices = [millrace::runtime().open("cpu")?, millrace::runtime().open("cpu")?];
/// let streams = [devices[0].stream()?, devices[1].stream()?];
/// let buffers = [devices[0].allocate(payload.len())?, devices[1].allocate(payload.len())?];
/// let mut next = buffers.iter();
/// let write = |_: &_| Ok(next.next().expect("one each").write(0, payload.clone()).into());
/// for ticket in millrace::fan_out_with(&streams, write, Instant::now() + Duration::from_secs(1)) {
///     ticket?.wait()?;
/// }
/// assert_eq!(*streams[1].run(buffers[1].read(..))?, payload[..]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn fan_out_with<'a>(
    streams: impl IntoIterator<Item = &'a Stream>,
    mut command: impl FnMut(&Stream) -> Result<Command>,
    deadline: Instant,
) -> Vec<Result<Ticket<Output>, Box<Rejected>>> {
    let mut streams: Vec<&Stream> = streams.into_iter().collect();
    let mut tickets: Vec<_> = streams
        .iter()
        .map(|stream| match command(stream) {
            Ok(command) => stream.try_submit(command),
            Err(error) => Err(Box::new(Rejected { error, command: Command::Synchronize })),
        })
        .collect();
    for (stream, ticket) in streams.drain(..).zip(&mut tickets) {
        let full = matches!(ticket, Err(rejected) if matches!(rejected.error, Error::QueueFull { .. }));
        if full && let Err(rejected) = ticket {
            let command = std::mem::replace(&mut rejected.command, Command::Synchronize);
            *ticket = stream.submit_deadline(command, deadline);
        }
    }
    tickets
}
