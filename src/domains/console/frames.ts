/** The frames of `holder/holder.go`: a kind byte, microseconds, a length, the content. */
export interface Frame {
  kind: 'o' | 'i' | 'r' | 'x' | 'c' | 'k'
  atSeconds: number
  content: Buffer
  /** Offset after the frame in the recording. */
  end: number
}

const headBytes = 13

/** Cuts an arriving recording into frames; `offset` is that of its first byte. */
export const openFrames = (offset: number) => {
  let rest: Buffer = Buffer.alloc(0)
  return (chunk: Uint8Array): Frame[] => {
    rest = Buffer.concat([rest, chunk])
    const frames: Frame[] = []
    let at = 0
    while (rest.length - at >= headBytes) {
      const length = rest.readUInt32BE(at + 9)
      if (rest.length - at < headBytes + length) break
      const content = rest.subarray(at + headBytes, at + headBytes + length)
      offset += headBytes + length
      frames.push({
        kind: String.fromCharCode(rest[at] ?? 0) as Frame['kind'],
        atSeconds: Number(rest.readBigUInt64BE(at + 1)) / 1e6,
        content,
        end: offset,
      })
      at += headBytes + length
    }
    rest = Buffer.from(rest.subarray(at))
    return frames
  }
}

/** A frame, as the holder and its clients send it. */
export const frameOf = (
  kind: Frame['kind'],
  content: Uint8Array = Buffer.alloc(0),
  atSeconds = 0,
): Buffer => {
  const head = Buffer.alloc(headBytes)
  head[0] = kind.charCodeAt(0)
  head.writeBigUInt64BE(BigInt(Math.round(atSeconds * 1e6)), 1)
  head.writeUInt32BE(content.length, 9)
  return Buffer.concat([head, content])
}

/** The content of a frame that tells to which offset the recording is stored. */
export const offsetContent = (offset: number): Buffer => {
  const content = Buffer.alloc(8)
  content.writeBigUInt64BE(BigInt(offset))
  return content
}

/** The content of a resize frame. */
export const sizeContent = (rows: number, columns: number): Buffer => {
  const content = Buffer.alloc(8)
  content.writeUInt32BE(rows, 0)
  content.writeUInt32BE(columns, 4)
  return content
}
