import { randomBytes } from 'node:crypto'
import { openBackoff } from '../../../pacing/backoff.ts'
import { readProgram } from '../../../shell/program.ts'
import type { RemoteContext } from './context.ts'

const program = readProgram(import.meta.dirname, 'follow.sh')
const pauses = { firstMs: 200, longestMs: 30_000, spread: 0.5 }
/** A stream that stood for this long was a good one: the next is opened soon. */
const goodAfterMs = 60_000

/** One stream of ends, until it breaks or `signal` is aborted. */
async function follow(
  { site, shell }: RemoteContext,
  {
    ended,
    stands,
    signal,
  }: { ended: (name: string) => void; stands: (now: boolean) => void; signal: AbortSignal },
): Promise<void> {
  const stream = await shell.open(await site.script(() => program))
  const stop = (): void => stream.kill()
  signal.addEventListener('abort', stop)
  if (signal.aborted) stop()
  // The stream stands when a line of ours has come through.
  const line = `open-${randomBytes(8).toString('hex')}`
  let standing = false
  let over = false
  let rest = ''
  stream.stdout.on('data', (bytes: Buffer) => {
    const lines = (rest + bytes.toString()).split('\n')
    rest = lines.pop() ?? ''
    for (const one of lines) {
      if (one === line && !standing) stands((standing = true))
      else if (!one.startsWith('open-')) ended(one)
    }
  })
  const knock = async (): Promise<void> => {
    for (
      const backoff = openBackoff({ firstMs: 50, longestMs: 5000 });
      !standing && !over && !signal.aborted;
    ) {
      await site.run(() => `echo ${line} >> ../ends`)
      await backoff.pause(signal)
    }
  }
  knock().catch(stop)
  await stream.done.finally(() => {
    over = true
    signal.removeEventListener('abort', stop)
    if (standing) stands(false)
  })
}

/** `RemoteTasks.onEnds`. */
export function followEnds(
  context: RemoteContext,
  ended: (name: string) => void,
  stands: (now: boolean) => void,
): () => void {
  const stopping = new AbortController()
  const { signal } = stopping
  const keepFollowing = async (): Promise<void> => {
    for (const backoff = openBackoff(pauses); !signal.aborted;) {
      const from = performance.now()
      await follow(context, { ended, stands, signal }).catch(() => undefined)
      if (performance.now() - from > goodAfterMs) backoff.reset()
      await backoff.pause(signal)
    }
  }
  void keepFollowing()
  return () => stopping.abort()
}
