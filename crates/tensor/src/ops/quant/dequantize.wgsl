let packed = x[id];
    for (var column = first; column < last; column++) {
        let channel = channel_of(row, column);
        let number = i32(packed << (24u - 8u * (column - first))) >> 24u;
        out[start + column] = f32(number - channel.zero) * channel.scale;
    }
