import type { Readable, Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { KubernetesCluster } from '../../../../clients/kubernetes-cluster.ts'
import type { SiteShell } from '../../../../shell/site-shell.ts'
import { reasonText } from '../../../../outside-text.ts'
import { DriverError } from '../../contract/driver.ts'
import { messageOf } from '../../contract/errno.ts'
import { courierName } from '../job.ts'
import { errorTextOf } from '../../remote/error-text.ts'
import { codes } from './scripts.ts'

/** A stream without a byte for this long counts as broken. */
const silentMs = 120_000
const execDeadlineMs = 15_000
const scriptDeadlineMs = 60_000

/** A command with its streams, at any place. */
export interface Flow {
  stdin: Writable
  stdout: Readable
  /** Exit code, and the end of the standard error. */
  done: Promise<{ code: number | null; stderr: string }>
  close(): void
}

/**
 * Copies all output of `from` to `to`; returns the code of `to`. Rejects unless `from` ended well,
 * or `to` stopped reading the data.
 */
export async function carry(what: string, from: Flow, to: Flow): Promise<number> {
  let last = performance.now()
  let silent = false
  const timer = setInterval(() => {
    if (performance.now() - last < silentMs) return
    silent = true
    from.close()
    to.close()
  }, 5000)
  const meter = async function* (source: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    for await (const bytes of source) {
      last = performance.now()
      yield bytes
    }
  }
  const sent = pipeline(from.stdout, meter, to.stdin)
  sent.catch(() => undefined)
  to.done.then(
    ({ code }) => (code === 0 ? undefined : from.close()),
    () => from.close(),
  )
  from.done.then(
    ({ code }) => (code === 0 ? undefined : to.close()),
    () => to.close(),
  )
  try {
    const [source, target] = await Promise.allSettled([from.done, to.done])
    if (target.status === 'fulfilled' && target.value.code === codes.already) return codes.already
    if (source.status === 'fulfilled' && source.value.code !== 0) {
      const { code, stderr } = source.value
      if (code === codes.already || code === codes.nothing || code === codes.notYet) return code
      throw new DriverError('infrastructure', `${what}: cannot be read (${errorTextOf(stderr)})`)
    }
    if (target.status === 'fulfilled' && target.value.code !== 0)
      throw new DriverError(
        'infrastructure',
        `${what}: cannot be written (${errorTextOf(target.value.stderr)})`,
      )
    if (silent) throw new DriverError('unknown', `${what}: nothing came for ${silentMs / 1000} s`)
    for (const one of [source, target])
      if (one.status === 'rejected')
        throw new DriverError('unknown', `${what}: ${messageOf(one.reason)}`, { cause: one.reason })
    await sent
    return codes.done
  } finally {
    clearInterval(timer)
    from.close()
    to.close()
  }
}

/** Commands in the Pods of tasks and at the keeper. */
export interface Commands {
  openInPod: (pod: string, script: string) => Promise<Flow>
  openAtKeeper: (script: string) => Promise<Flow>
  /** Runs a short script in a Pod. */
  runInPod: (pod: string, script: string) => Promise<{ code: number | null; stdout: Buffer; stderr: string }>
  /** The same; a code other than 0 rejects with `what`. */
  doInPod: (what: string, pod: string, script: string) => Promise<void>
  /** Runs a short script at the keeper and returns its output. */
  doAtKeeper: (what: string, script: string) => Promise<string>
}

export function openCommands({
  cluster,
  namespace,
  shell,
}: {
  cluster: Pick<KubernetesCluster, 'exec'>
  namespace: string
  shell: SiteShell
}): Commands {
  const openInPod = async (pod: string, script: string): Promise<Flow> => {
    const command = ['/bin/sh', '-c', script]
    const channel = await cluster.exec({
      namespace,
      pod,
      container: courierName,
      command,
      deadlineMs: execDeadlineMs,
    })
    let errors = Buffer.alloc(0)
    channel.stderr.on('data', (bytes: Buffer) => (errors = Buffer.concat([errors, bytes]).subarray(-4096)))
    const done = channel.done.then((code) => ({ code, stderr: reasonText(errors) }))
    done.catch(() => undefined)
    return { stdin: channel.stdin, stdout: channel.stdout, done, close: () => channel.close() }
  }
  const runInPod: Commands['runInPod'] = async (pod, script) => {
    const flow = await openInPod(pod, script)
    const chunks: Buffer[] = []
    flow.stdout.on('data', (bytes: Buffer) => chunks.push(bytes))
    const timer = setTimeout(() => flow.close(), scriptDeadlineMs)
    try {
      flow.stdin.end()
      return { ...(await flow.done), stdout: Buffer.concat(chunks) }
    } finally {
      clearTimeout(timer)
      flow.close()
    }
  }
  return {
    openInPod,
    async openAtKeeper(script) {
      const stream = await shell.open(script)
      const { stdin, stdout, done } = stream
      let over = false
      const end = (): void => void (over = true)
      done.then(end, end)
      // The kill ends processes by their id, which may belong to another process by now.
      return { stdin, stdout, done, close: () => (over ? undefined : stream.kill()) }
    },
    runInPod,
    async doInPod(what, pod, script) {
      const { code, stderr } = await runInPod(pod, script)
      if (code !== 0) throw new DriverError('infrastructure', `${what} in Pod ${pod}: ${errorTextOf(stderr)}`)
    },
    async doAtKeeper(what, script) {
      const { code, stdout, stderr } = await shell.run(script, { deadlineMs: scriptDeadlineMs })
      if (code !== 0) throw new DriverError('infrastructure', `${what}: ${errorTextOf(stderr)}`)
      return stdout.toString()
    },
  }
}
