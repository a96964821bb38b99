//! What is sent sixty times a second: bytes that are made once for all who look.

use bytes::Bytes;

use super::world::Status;

/// One frame, made for all who look: a line of JSON, its length in front of it, and a byte for every cell.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frame {
    /// The slice.
    pub(crate) flat: Bytes,
    /// And the layers, if somebody wants them.
    pub(crate) deep: Bytes,
}

impl Frame {
    /// The same cells with another status.
    pub(crate) fn under(&self, status: &Status) -> Self {
        let header = header(status);
        let renew = |frame: &Bytes| {
            let length = frame.first_chunk().map_or(0, |&length| 4 + u32::from_le_bytes(length) as usize);
            Bytes::from([&header, frame.get(length..).unwrap_or_default()].concat())
        };
        Self { flat: renew(&self.flat), deep: renew(&self.deep) }
    }
}

/// What every frame begins with.
pub(crate) fn header(status: &Status) -> Vec<u8> {
    // Numbers, texts and maps by text can always be said.
    let line = serde_json::to_vec(status).unwrap_or_default();
    [&(line.len() as u32).to_le_bytes(), &*line].concat()
}
