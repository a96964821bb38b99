//! A plane of the room as a picture.

use crate::{Error, Result, Room};

/// The shortest side that a picture has, if whole numbers of pixels for a cell allow it.
const SIDE: usize = 512;
/// The share of all cells that are brighter than the scale goes: the source's own cell would leave no colour to the rest.
const GLARE: f64 = 0.005;
/// Colours go with this power of the pressure, because a wave from a point loses most of its height on its way.
const GAMMA: f32 = 0.6;
/// From the most negative pressure over none to the most positive: ColorBrewer's RdBu, blue first.
const COLOURS: [[u8; 3]; 11] = [
    [5, 48, 97],
    [33, 102, 172],
    [67, 147, 195],
    [146, 197, 222],
    [209, 229, 240],
    [247, 247, 247],
    [253, 219, 199],
    [244, 165, 130],
    [214, 96, 77],
    [178, 24, 43],
    [103, 0, 31],
];
const OBSTACLE: [u8; 3] = [45, 45, 45];

/// A plane of the room: blue below and red above the resting pressure, which is white, obstacles dark; x goes to the
/// right and y up. Every cell is a square of some pixels, so that small rooms can be looked at.
///
/// ```
/// use millrace_wave::{Engine, Picture, Reference, Setup};
/// let mut engine = Reference::new(Setup::new([20, 10, 9]).obstacle([0, 0, 4]).build()?)?;
/// engine.inject([10, 5, 4], 1.0)?;
/// let plane = engine.plane(4)?;
/// let picture = Picture::of(engine.room(), 4, &plane)?;
/// assert_eq!((picture.width(), picture.height()), (1040, 520));
/// assert_eq!(picture.pixel(0, 519), [45, 45, 45]);
/// assert_eq!(picture.pixel(530, 240), [103, 0, 31]);
/// assert!(picture.to_png()?.starts_with(b"\x89PNG"));
/// # Ok::<(), millrace_wave::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Picture {
    /// The plane at `z`, whose pressures these are.
    ///
    /// ```
    /// use millrace_wave::{Error, Picture, Setup};
    /// let room = Setup::new([2, 2, 1]).build()?;
    /// let picture = Picture::of(&room, 0, &[1.0, 0.0, 0.0, -1.0])?;
    /// assert_eq!(picture.pixel(0, picture.height() - 1), [103, 0, 31], "the first cell is below on the left");
    /// assert_eq!(Picture::of(&room, 0, &[0.0]), Err(Error::WrongLength { given: 1, expected: 4 }));
    /// # Ok::<(), millrace_wave::Error>(())
    /// ```
    pub fn of(room: &Room, z: u32, pressures: &[f32]) -> Result<Self> {
        room.index([0, 0, z])?; // which checks it
        let [nx, ny, _] = room.size().map(|n| n as usize);
        if pressures.len() != nx * ny {
            return Err(Error::WrongLength { given: pressures.len(), expected: nx * ny });
        }
        let zoom = SIDE.div_ceil(nx.min(ny)).min(4 * SIDE / nx.max(ny)).max(1);
        let brightest = full_scale(pressures);
        let mut rgb = Vec::with_capacity(3 * nx * ny * zoom * zoom);
        for y in (0..ny).rev() {
            let row: Vec<u8> = (0..nx)
                .flat_map(|x| {
                    let solid = room.is_solid([x as u32, y as u32, z]);
                    let colour = if solid { OBSTACLE } else { colour(pressures[y * nx + x] / brightest) };
                    colour.repeat(zoom)
                })
                .collect();
            (0..zoom).for_each(|_| rgb.extend_from_slice(&row));
        }
        Ok(Self { width: nx * zoom, height: ny * zoom, rgb })
    }

    /// Pixels from left to right.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Pixels from top to bottom.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Red, green and blue of a pixel, counted from the left and from the top.
    ///
    /// # Panics
    /// If the picture has no such pixel.
    pub fn pixel(&self, x: usize, y: usize) -> [u8; 3] {
        assert!(x < self.width && y < self.height, "pixel ({x}, {y}) is outside of {} × {}", self.width, self.height);
        let at = 3 * (y * self.width + x);
        [self.rgb[at], self.rgb[at + 1], self.rgb[at + 2]]
    }

    /// The picture as the bytes of a PNG file.
    pub fn to_png(&self) -> Result<Vec<u8>> {
        let broken = |error: png::EncodingError| Error::Picture(error.to_string());
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().map_err(broken)?;
        writer.write_image_data(&self.rgb).map_err(broken)?;
        writer.finish().map_err(broken)?;
        Ok(bytes)
    }
}

/// The pressure that gets the strongest colour.
fn full_scale(pressures: &[f32]) -> f32 {
    let mut heights: Vec<f32> = pressures.iter().map(|p| p.abs()).filter(|p| p.is_finite()).collect();
    if heights.is_empty() {
        return 1.0;
    }
    let at = ((heights.len() as f64 * (1.0 - GLARE)) as usize).min(heights.len() - 1);
    let (_, &mut height, above) = heights.select_nth_unstable_by(at, f32::total_cmp);
    // Where nearly everything is quiet, the little that is not sets the scale.
    let height = if height > 0.0 { height } else { above.iter().copied().fold(0.0, f32::max) };
    if height > 0.0 { height } else { 1.0 }
}

/// The colour of a pressure between -1 and 1; beyond that, of the nearest.
fn colour(pressure: f32) -> [u8; 3] {
    let height = if pressure.is_nan() { 0.0 } else { pressure.abs().min(1.0).powf(GAMMA).copysign(pressure) };
    let at = (height + 1.0) / 2.0 * (COLOURS.len() - 1) as f32;
    let below = (at as usize).min(COLOURS.len() - 2);
    let share = at - below as f32;
    std::array::from_fn(|i| {
        let (from, to) = (f32::from(COLOURS[below][i]), f32::from(COLOURS[below + 1][i]));
        (from + (to - from) * share).round() as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Setup;

    #[test]
    fn colours_diverge_from_white() {
        assert_eq!(colour(0.0), [247, 247, 247]);
        assert_eq!((colour(-1.0), colour(1.0)), (COLOURS[0], COLOURS[10]));
        assert_eq!((colour(-9.0), colour(9.0)), (COLOURS[0], COLOURS[10]));
        let [red, _, blue] = colour(0.1);
        assert!(red > blue);
        let [red, _, blue] = colour(-0.1);
        assert!(blue > red);
    }

    #[test]
    fn the_source_alone_does_not_set_the_scale() {
        let mut plane = vec![0.1; 10_000];
        plane[5000] = 100.0;
        assert_eq!(full_scale(&plane), 0.1);
        let mut quiet = vec![0.0; 10_000];
        quiet[5000] = 3.0;
        assert_eq!(full_scale(&quiet), 3.0);
        assert_eq!(full_scale(&[0.0; 4]), 1.0);
    }

    #[test]
    fn a_png_can_be_read_again() {
        let room = Setup::new([3, 2, 1]).obstacle([2, 1, 0]).build().unwrap();
        let picture = Picture::of(&room, 0, &[0.0, 1.0, -1.0, 0.0, 0.0, 0.0]).unwrap();
        let bytes = picture.to_png().unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width as usize, info.height as usize), (picture.width(), picture.height()));
        assert_eq!(pixels, picture.rgb);
        assert_eq!(picture.pixel(picture.width() - 1, 0), OBSTACLE, "y goes up");
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let room = Setup::new([3, 2, 1]).build().unwrap();
        assert_eq!(Picture::of(&room, 0, &[0.0; 5]), Err(Error::WrongLength { given: 5, expected: 6 }));
        assert!(matches!(Picture::of(&room, 1, &[0.0; 6]), Err(Error::Outside { .. })));
    }
}
