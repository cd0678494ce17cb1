import { LinkError, type ShellResult, type ShellStream } from '../../drivers/shell.ts'

/** A script over a stream of its own, from its input to its whole output; `until` in `performance.now()` milliseconds. */
export const collect = async (
  stream: ShellStream,
  input: Uint8Array | string | undefined,
  until: number,
  maxBytes: number,
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
    Math.max(1, until - performance.now()),
  )
  stream.stdout.on('data', (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes <= maxBytes) chunks.push(chunk)
    else stop(new RangeError(`the script wrote more than ${maxBytes} bytes`))
  })
  stream.stdin.end(input)
  try {
    const { code, signal, stderr } = await stream.done
    if (failure !== undefined) throw failure
    if (!stream.stdout.readableEnded) await new Promise((resolve) => stream.stdout.once('end', resolve))
    return { code, signal, stdout: Buffer.concat(chunks), stderr }
  } finally {
    clearTimeout(timer)
  }
}
