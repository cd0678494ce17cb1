import { LinkError, runDefaults, type RunOptions, type ShellResult, type ShellStream } from './site-shell.ts'

/** Bytes of the standard error that are kept. */
export const stderrBytes = 64 * 1024

/** The last bytes of a stream, as text. */
export class LastBytes {
  #chunks: Buffer[] = []
  #size = 0
  add(chunk: Buffer): void {
    this.#chunks.push(chunk)
    this.#size += chunk.length
    while (this.#size - this.#chunks[0]!.length >= stderrBytes) this.#size -= this.#chunks.shift()!.length
  }
  toString(): string {
    return Buffer.concat(this.#chunks).subarray(-stderrBytes).toString('utf8')
  }
}

/** Runs a script over a stream of its own, from its input to its whole output; as `SiteShell.run`. */
export const collectOutput = async (
  stream: ShellStream,
  { input, deadlineMs = runDefaults.deadlineMs, maxBytes = runDefaults.maxBytes }: RunOptions,
): Promise<ShellResult> => {
  const chunks: Buffer[] = []
  let bytes = 0
  let failure: Error | undefined
  const stop = (error: Error): void => {
    failure ??= error
    stream.kill()
  }
  const timer = setTimeout(
    () => stop(new LinkError('link', 'the script did not end until its deadline')),
    deadlineMs,
  )
  stream.stdout.on('data', (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes <= maxBytes) chunks.push(chunk)
    else stop(new RangeError(`the script wrote more than ${maxBytes} bytes`))
  })
  stream.stdin.end(input)
  try {
    const { code, signal, stderr } = await stream.done.catch((error: unknown) => {
      throw failure ?? error
    })
    const { stdout } = stream
    // A stream that is stopped meanwhile closes without an end.
    if (failure === undefined && !stdout.readableEnded && !stdout.closed)
      await new Promise<void>((resolve) => {
        stdout.once('end', resolve).once('close', resolve)
      })
    if (failure !== undefined) throw failure
    return { code, signal, stdout: Buffer.concat(chunks), stderr }
  } finally {
    clearTimeout(timer)
  }
}
