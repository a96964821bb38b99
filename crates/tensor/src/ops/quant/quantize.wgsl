var packed = 0u;
    for (var column = first; column < last; column++) {
        let number = quantized(x[params.offset + start + column], channel_of(row, column));
        packed |= number << (8u * (column - first));
    }
    out[id] = packed;
