import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import type { Intent } from '../../src/drivers/runtime/contract/driver.ts'
import { openContainerSite } from '../../test/drivers/container-site.ts'
import { loadSystemImage, openDockerEngine, type DockerEngine } from '../../sites/docker.ts'
import { siteLacks } from '../../sites/needs.ts'
import { run } from '../../sites/ground.ts'
import { newFolder } from '../folder.ts'
import { allMissing, parallelMissing } from '../needs.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, medianRatio, secondsOf, type Measured } from '../rounds.ts'
import { versionOf } from './places.ts'

const fullCount = 1_000
const atOnce = availableParallelism()
const noting = (task: string): string => `echo ${task} >> ledger`

interface Place {
  engine: DockerEngine
  image: string
  /** A fresh folder for one round of one side. */
  folder: string
}

/**
 * Runs `tasks` on the driver of this machine with Docker, `atOnce` of them at a time, each with its
 * records, logs and manifest.
 */
const ours = async ({ engine, image, folder: root }: Place, tasks: number, reuse: boolean): Promise<void> => {
  const { plain: driver, shell } = openContainerSite({
    kind: 'local',
    root,
    environment: { PATH: `${engine.commands}:/usr/sbin:/usr/bin:/sbin:/bin` },
    container: { image, network: false, reuse, scope: 'bench' },
  })
  let next = 0
  const worker = async (): Promise<void> => {
    while (next < tasks) {
      const name = `t${next++}`
      const intent: Intent = {
        ...{
          name,
          directory: join(root, 'work/run', name, '1'),
          argv: ['sh', '-c', noting(name)],
          environment: {},
          stage: [],
          expectedOutputs: ['ledger'],
        },
        ...{
          cores: 1,
          memoryBytes: 0,
          timeoutSeconds: 300,
          container: { engine: 'docker', image, network: false, reuse, scope: 'bench' },
        },
      }
      const ended = new Promise<void>((resolve) => driver.watch([name], () => resolve()))
      const [outcome] = await driver.submit([intent])
      if (outcome?.ok !== true) throw outcome?.error ?? new Error('no outcome')
      await ended
      const { state, missingOutputs } = await driver.collect(name)
      if (state.state !== 'ended' || state.exitCode !== 0 || missingOutputs.length > 0)
        throw new Error(`${name}: ${JSON.stringify(state)}`)
      if (readFileSync(join(intent.directory, 'ledger'), 'utf8') !== `${name}\n`)
        throw new Error(`${name} did not run once`)
    }
  }
  await Promise.all(Array.from({ length: atOnce }, worker))
  await driver.closeScope('bench')
  await driver.close()
  await shell.close()
}

/** `tasks` under GNU parallel, `atOnce` `docker run` at once, with the same isolation. */
const parallel = async ({ engine, image, folder: work }: Place, tasks: number): Promise<void> => {
  const options =
    '--rm --network none --read-only --cap-drop ALL --user 0:0 --log-driver none -v ' +
    `${work}:${work} -w ${work}`
  const names = Array.from({ length: tasks }, (_, i) => `t${i}`)
  await run(
    'parallel',
    [
      '--will-cite',
      '-j',
      String(atOnce),
      `${engine.commands}/docker run ${options} ${image} sh -c '${noting('{}')}'`,
    ],
    {
      input: `${names.join('\n')}\n`,
      environment: { HOME: work },
      deadlineMs: 1_800_000,
    },
  )
  const noted = readFileSync(join(work, 'ledger'), 'utf8').trim().split('\n')
  if (new Set(noted).size !== tasks || noted.length !== tasks)
    throw new Error(`parallel noted ${noted.length} tasks`)
}

export const containerTasks: Benchmark = {
  about:
    `${fullCount} short tasks in containers of Docker on this machine, ${atOnce} at once, against ` +
    'docker run in GNU parallel',
  missing: async () => allMissing(siteLacks({ kind: 'docker' }), parallelMissing()),
  async run({ rounds, tiny }) {
    const count = tiny ? 10 : fullCount
    // Only the first tasks find a cold engine, image and container, and a full round takes minutes.
    const coldCount = count / 10
    const folder = newFolder('containers-')
    await using engine = await openDockerEngine({ data: '/var/cache/orrery/test-tasks', kind: 'tasks' })
    try {
      const image = await loadSystemImage(engine)
      /**
       * A side that runs the few tasks of the cold round at its first call, and all tasks later.
       */
      const side = (work: (place: Place, tasks: number) => Promise<void>): Measured => {
        let tasks = coldCount
        return async () => {
          const place = { engine, image, folder: mkdtempSync(join(folder, 'round-')) }
          const seconds = await secondsOf(() => work(place, tasks))
          rmSync(place.folder, { recursive: true, force: true })
          tasks = count
          return seconds
        }
      }
      const { cold, warm } = await interleaved(rounds, {
        kept: side((place, tasks) => ours(place, tasks, true)),
        own: side((place, tasks) => ours(place, tasks, false)),
        parallel: side(parallel),
      })
      return {
        sides: [
          { name: 'Orrery’s driver, containers kept', unit: 's', cold: cold.kept, warm: warm.kept },
          { name: 'Orrery’s driver, a container a task', unit: 's', cold: cold.own, warm: warm.own },
          { name: 'docker run in GNU parallel', unit: 's', cold: cold.parallel, warm: warm.parallel },
        ],
        goals: [
          {
            what: 'wall against docker run in parallel, containers kept',
            unit: '×',
            measured: medianRatio(warm.kept, warm.parallel),
            sense: 'most',
            goal: 0.5,
          },
        ],
        notes: [
          `${count} tasks on every side, ${coldCount} in the cold round, each noted itself once; ` +
            'the same image, without network and capabilities, root read only',
          'The driver besides makes a work directory, records of start and end, logs and a manifest ' +
            'per task, and collects them; the other side keeps nothing',
        ],
        versions: {
          'GNU parallel': versionOf((await run('parallel', ['--version'])).stdout),
          'Docker engine': await engine.docker('version', '--format', '{{.Server.Version}}'),
        },
      }
    } finally {
      rmSync(folder, { recursive: true, force: true })
    }
  },
}
