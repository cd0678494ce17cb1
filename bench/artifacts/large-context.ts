import { spawn } from 'node:child_process'
import { randomFillSync } from 'node:crypto'
import { once } from 'node:events'
import { createWriteStream, openAsBlob, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createGzip } from 'node:zlib'
import { pack } from 'tar-stream'
import { startDaemon, type Daemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median, medianRatio, secondsOf } from '../rounds.ts'

const mebibyte = 2 ** 20

/** A context of that many bytes in files of 16 MiB, which hardly compress. */
const makeContext = async (path: string, mebibytes: number): Promise<void> => {
  const tar = pack()
  const written = pipeline(
    Readable.from(tar as AsyncIterable<Buffer>),
    createGzip({ level: 1 }),
    createWriteStream(path),
  )
  const bytes = Buffer.alloc(16 * mebibyte)
  for (let at = 0; at < mebibytes; at += 16)
    await new Promise<void>((resolve, reject) =>
      tar.entry({ name: `files/${String(at)}` }, randomFillSync(bytes), (error) =>
        error == null ? resolve() : reject(error),
      ),
    )
  tar.finalize()
  await written
}

const statusOf = (pid: number, name: 'VmRSS' | 'VmHWM'): number =>
  Number(
    new RegExp(String.raw`^${name}:\s+(\d+)`, 'm').exec(
      readFileSync(`/proc/${String(pid)}/status`, 'utf8'),
    )?.[1] ?? 0,
  ) / 1_024

/** Uploads the context, then deletes it. @returns its digest */
const uploaded = async (daemon: Daemon, context: Blob): Promise<string> => {
  const form = new FormData()
  form.append('context', context, 'context.tar.gz')
  const answer = await fetch(`${daemon.facts().baseUrl}/build-contexts/`, { method: 'POST', body: form })
  if (answer.status !== 201) throw new Error(`the upload: ${String(answer.status)} ${await answer.text()}`)
  return ((await answer.json()) as { digest: string }).digest
}

export const largeContext: Benchmark = {
  about:
    'a build context of 1 GiB, from the request to its answer, against a handler that writes, hashes, gunzips',
  async run({ rounds, tiny }) {
    const mebibytes = tiny ? 32 : 1_024
    const folder = newFolder('large-context-')
    const path = join(folder, 'context.tar.gz')
    await makeContext(path, mebibytes)
    const context = await openAsBlob(path)
    const daemon = await startDaemon({ SERVICE_BUILD_CONTEXT_LIMIT_BYTES: String(2 ** 31) })
    const plain = spawn(process.execPath, [join(import.meta.dirname, 'plain-upload.ts'), folder], {
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    try {
      const [port] = (await once(plain.stdout, 'data')) as [Buffer]
      const address = `http://127.0.0.1:${port.toString().trim()}/`
      const { daemon: pid } = daemon.facts().pids
      const more: number[] = []
      let digest = ''
      const ours = async (): Promise<number> => {
        const before = statusOf(pid, 'VmRSS')
        // The kernel counts the highest use from here on.
        writeFileSync(`/proc/${String(pid)}/clear_refs`, '5')
        const seconds = await secondsOf(async () => (digest = await uploaded(daemon, context)))
        more.push(statusOf(pid, 'VmHWM') - before)
        await daemon.ok('DELETE', `/build-contexts/${digest}/`)
        return seconds
      }
      const handler = (): Promise<number> =>
        secondsOf(async () => {
          const answer = await fetch(address, { method: 'POST', body: context })
          if ((await answer.text()) !== digest) throw new Error('the digests differ')
        })
      const { cold, warm } = await interleaved(rounds, { ours, handler })
      return {
        sides: [
          { name: 'Orrery, POST /build-contexts/', unit: 's', cold: cold.ours, warm: warm.ours },
          { name: 'plain Node handler', unit: 's', cold: cold.handler, warm: warm.handler },
        ],
        goals: [
          {
            ...{ what: 'throughput against the handler', unit: '×', sense: 'least', goal: 0.8 },
            measured: medianRatio(warm.handler, warm.ours),
          },
          {
            ...{ what: 'memory of the daemon beyond that before', unit: 'MiB', sense: 'most', goal: 150 },
            measured: median(more),
          },
        ],
        notes: [
          `${String(mebibytes)} MiB that hardly compress, as tar with gzip; both sides answer the same digest and ` +
            'sync the file. Orrery also takes the form apart, walks the archive and judges each entry',
        ],
        versions: { Node: process.version },
      }
    } finally {
      plain.kill('SIGKILL')
      await daemon.stop()
      rmSync(folder, { recursive: true, force: true })
    }
  },
}
