import { createHash, randomFillSync } from 'node:crypto'
import {
  closeSync,
  createWriteStream,
  mkdirSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type pg from 'pg'
import { run } from '../../sites/ground.ts'
import { startDaemon, type Daemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import { programsMissing } from '../needs.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, medianRatio, secondsOf } from '../rounds.ts'
import { connected, memoryDuring } from './measure.ts'

/** Files that an export sends, and the options of `zip` for its side. */
interface Load {
  /** The bytes of each file, piece by piece. */
  files: Iterable<Iterable<Buffer>>
  zip: string[]
}

const randomPieces = function* (mebibytes: number): Generator<Buffer> {
  const piece = Buffer.alloc(1024 ** 2)
  for (let n = 0; n < mebibytes; n += 1) yield randomFillSync(piece)
}

/** Files as those of `index-runs`. */
const smallFiles = function* (files: number): Generator<Buffer[]> {
  for (let n = 0; n < files; n += 1) yield [Buffer.from(String(n))]
}

/** Writes bytes under their digest, as the store of artifacts keeps them. @returns the digest */
const plant = (store: string, pieces: Iterable<Buffer>): string => {
  const [sum, aside] = [createHash('sha256'), join(store, 'planted')]
  const file = openSync(aside, 'w')
  for (const piece of pieces) {
    sum.update(piece)
    writeSync(file, piece)
  }
  closeSync(file)
  const hex = sum.digest('hex')
  mkdirSync(join(store, hex.slice(0, 2)), { recursive: true })
  renameSync(aside, join(store, hex.slice(0, 2), hex))
  return hex
}

/** Unpacks an archive. @throws Error where it lacks one of the files, or its bytes are others */
const checkArchive = async (archive: string, into: string, digests: readonly string[]): Promise<void> => {
  await run('unzip', ['-q', '-j', archive, '-d', into, '-x', 'manifest.json', 'database/*'])
  const { stdout } = await run('sh', ['-c', `cd ${into} && sha256sum -- *`])
  rmSync(into, { recursive: true })
  const lines = stdout.trim().split('\n').toSorted()
  const expected = digests.map((hex) => `${hex}  ${hex}`).toSorted()
  if (lines.join() !== expected.join()) throw new Error(`${archive} holds other files than the store`)
}

/** Exports the files of a load, and packs them by `zip`, in interleaved rounds. */
const measureLoad = async (
  { daemon, client, folder, rounds }: { daemon: Daemon; client: pg.Client; folder: string; rounds: number },
  { files, zip }: Load,
) => {
  const store = join(daemon.dataDir, 'artifacts', 'contexts')
  mkdirSync(store, { recursive: true })
  const digests = Array.from(files, (pieces) => plant(store, pieces))
  // The rows that an export asks for, without the requests that would have made them.
  await client.query('delete from build_contexts')
  await client.query(
    `insert into build_contexts (digest, storage_uri, size_bytes, media_type, host_id)
      select 'sha256:' || hex, 'artifact://contexts/' || hex, 1, 'application/x-tar', '' from unnest($1::text[]) hex`,
    [digests],
  )
  const [ours, theirs] = [join(folder, 'ours.zip'), join(folder, 'theirs.zip')]
  const growths: number[] = []
  const url = `${daemon.facts().baseUrl}/instances/default/export/?includeArtifacts=true`
  const measured = await interleaved(rounds, {
    export: async () => {
      const { value, grown } = await memoryDuring(daemon.facts().pids.daemon, () =>
        secondsOf(async () => {
          const answer = await fetch(url)
          if (answer.status !== 200 || answer.body === null) throw new Error(await answer.text())
          await pipeline(Readable.fromWeb(answer.body as never), createWriteStream(ours))
        }),
      )
      growths.push(grown)
      return value
    },
    zip: async () => {
      rmSync(theirs, { force: true })
      return secondsOf(() => run('zip', ['-q', ...zip, '-r', '-j', theirs, store], { deadlineMs: 300_000 }))
    },
  })
  for (const archive of [ours, theirs]) await checkArchive(archive, join(folder, 'unpacked'), digests)
  const bytes = statSync(ours).size
  for (const name of readdirSync(store)) rmSync(join(store, name), { recursive: true })
  return { ...measured, bytes, grown: Math.max(...growths) }
}

export const recordZip: Benchmark = {
  about:
    'export of an instance with 1 GiB of random bytes against zip -0 of the same file, and with a tree of small ' +
    'files against zip of the tree',
  missing: () => programsMissing({ zip: 'zip', unzip: 'unzip' }),
  async run({ rounds, tiny }) {
    const [mebibytes, files] = tiny ? [16, 100] : [1_024, 6_500]
    const folder = newFolder('zip-')
    const daemon = await startDaemon()
    const client = await connected(daemon)
    try {
      const parts = { daemon, client, folder, rounds }
      const large = await measureLoad(parts, { files: [randomPieces(mebibytes)], zip: ['-0'] })
      const tree = await measureLoad(parts, { files: smallFiles(files), zip: [] })
      const names = { large: `${mebibytes} MiB`, tree: `${files.toLocaleString('en')} small files` }
      const loads = { large, tree }
      return {
        sides: (['large', 'tree'] as const).flatMap((load) =>
          (['export', 'zip'] as const).map((side) => ({
            name: `${names[load]}: ${side === 'export' ? side : load === 'large' ? 'zip -0' : 'zip -q'}`,
            ...{ unit: 's', warm: loads[load].warm[side], cold: loads[load].cold[side] },
          })),
        ),
        goals: [
          {
            ...{ what: `${names.large}: faster than zip -0`, unit: '×', sense: 'least', goal: 4 },
            measured: medianRatio(large.warm.zip, large.warm.export),
          },
          {
            ...{ what: `${names.tree}: wall over zip -q`, unit: '×', sense: 'most', goal: 0.6 },
            measured: medianRatio(tree.warm.export, tree.warm.zip),
          },
          {
            ...{ what: 'memory', unit: ' MiB', sense: 'most', goal: 150 },
            measured: Math.max(large.grown, tree.grown),
          },
        ],
        notes: [
          `the archives have ${String(large.bytes)} and ${String(tree.bytes)} bytes; unzip gives the same files from ` +
            'those of both sides',
          'the export reads each file for secrets and CRC-32, then reads it again to send it over HTTP, to a reader ' +
            'in JavaScript that writes it to disk; zip reads and writes it once, in one process',
          'an export names each file in its manifest, whose bound of 1 MiB holds some 6,600: the tree is a ' +
            'thirtieth of that of index-runs; the export also has the rows of the whole database',
        ],
        versions: { zip: /This is Zip (\S+)/.exec((await run('zip', ['-v'])).stdout)?.[1] ?? '' },
      }
    } finally {
      await client.end()
      await daemon.stop()
      rmSync(folder, { recursive: true, force: true })
    }
  },
}
