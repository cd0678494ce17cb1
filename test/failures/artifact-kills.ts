import { execFileSync } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import type { Failures } from '../../bench/tally.ts'
import { allowApptainer, haveApptainer } from '../../sites/apptainer.ts'
import { openDockerEngine, startLoopbackRegistry, type DockerEngine } from '../../sites/docker.ts'
import { kubernetesImages } from '../../sites/kubernetes-images.ts'
import { startSsh } from '../../sites/ssh.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { describedBuild, sha256, tarOf } from '../artifacts/world.ts'
import { kill } from '../support/kill.ts'
import { connectionTo, inContainers, makeVaultKeyFile, onHost } from '../support/reach.ts'
import { makeWorld, type WorldPlace } from '../support/worlds.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, randomOf, type Programs } from './rounds.ts'

/**
 * Builds and deliveries of executables under sudden deaths. Each round is one kill, in a phase that the
 * record or the site shows; afterwards the work is whole, done once, and nothing half is left.
 */

const base = 'local/bb:1'
const blows = ['daemon', 'worker', 'postgres', 'temporal', 'engine'] as const
type Blow = (typeof blows)[number]
const over = ['completed', 'failed', 'cancelled']

interface World {
  programs: Programs
  engine: DockerEngine
  registry: Awaited<ReturnType<typeof startLoopbackRegistry>>
  dataDir: string
}

const openWorld = async (
  environment: Record<string, string> = {},
): Promise<World & { close: () => Promise<void> }> => {
  await haveApptainer()
  const dataDir = dataFolder()
  let world: World | undefined
  const [engine, registry] = await Promise.all([
    openDockerEngine({ data: '/var/cache/orrery/test-asked', kind: 'asked', buildkit: true }),
    startLoopbackRegistry(join(dataDir, 'registry')),
  ])
  const close = async (): Promise<void> => {
    await world?.programs.stop()
    await Promise.all([engine[Symbol.asyncDispose](), registry.stop()])
    removeFolder(dataDir)
  }
  try {
    const { busybox } = await kubernetesImages(configFromEnvironment().cacheDir)
    await engine.docker('load', '--quiet', '--input', busybox)
    const programs = openPrograms(dataDir, {
      environment: {
        SERVICE_CONTAINER_ENGINE: engine.socket,
        SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
        SERVICE_ARTIFACT_ROOT: join(dataDir, 'artifacts'),
        SERVICE_SEED_ROOT: join(dataDir, 'seeds'),
        SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
        ...environment,
      },
    })
    mkdirSync(join(dataDir, 'seeds'), { recursive: true })
    world = { programs, engine, registry, dataDir }
    await programs.startDaemon()
    return { ...world, close }
  } catch (error) {
    await close()
    throw error
  }
}

/** The second worker takes part in every round. */
const haveWorker = async ({ worker, startWorker }: Programs): Promise<void> => {
  if (worker === undefined || worker.child.exitCode !== null || worker.child.signalCode !== null)
    await startWorker()
}

const strike = async ({ programs, engine }: World, blow: Blow): Promise<void> => {
  if (blow === 'engine') {
    await engine.kill()
    await engine.start()
  } else if (blow === 'worker') kill(programs.worker?.child.pid)
  else if (blow === 'daemon') {
    await programs.killDaemon()
    await programs.startDaemon()
  } else kill((await programs.pids())[blow])
}

/** PostgreSQL may be on its way back: 503, and nothing else, says so. */
const readOrNothing = async ({ programs }: World, path: string): Promise<any> => {
  const { status, body } = await programs.call('GET', path)
  if (status === 503) return undefined
  if (status !== 200) throw new Error(`GET ${path} answered ${String(status)}: ${JSON.stringify(body)}`)
  return body
}

/** Makes an image of random bytes and puts it into the registry, not into the engine. */
const pushed = async ({ engine, registry, dataDir }: World, name: string, mebibytes: number) => {
  const [files, archive] = [join(dataDir, `${name}-files.tar`), join(dataDir, `${name}.tar`)]
  writeFileSync(files, await tarOf([{ name: 'bytes', content: randomBytes(mebibytes * 2 ** 20) }]))
  const recipe = join(dataDir, `${name}-recipe`)
  mkdirSync(recipe)
  execFileSync('tar', ['-x', '-f', files, '-C', recipe])
  writeFileSync(join(recipe, 'Dockerfile'), `FROM ${base}\nCOPY bytes /bytes\n`)
  await engine.docker('build', '--quiet', '--tag', `delivered/${name}:1`, recipe)
  await engine.docker('save', '--output', archive, `delivered/${name}:1`)
  const digest = await registry.push(archive, `delivered/${name}:1`)
  await engine.docker('rmi', '--force', `delivered/${name}:1`)
  await engine.docker('builder', 'prune', '--all', '--force')
  for (const path of [files, archive, recipe]) rmSync(path, { recursive: true })
  return `${registry.address}/delivered/${name}@${digest}`
}

const fileDigest = (path: string): string =>
  `sha256:${createHash('sha256').update(readFileSync(path)).digest('hex')}`

/** What is wrong with the files of a store, and with the engine, once no build is open. */
const leftOf = async ({ dataDir, engine }: World, id: string): Promise<string[]> => {
  const store = join(dataDir, 'artifacts')
  const violations: string[] = []
  for (const folder of ['builds', 'partial'])
    for (const name of existsSync(join(store, folder)) ? readdirSync(join(store, folder)) : [])
      violations.push(`${id} has left ${folder}/${name}`)
  for (const kind of ['images', 'contexts'])
    for (const path of existsSync(join(store, kind))
      ? (readdirSync(join(store, kind), { recursive: true }) as string[])
      : [])
      if (/[0-9a-f]{64}$/.test(path) && fileDigest(join(store, kind, path)) !== `sha256:${path.slice(-64)}`)
        violations.push(`${id}: ${kind}/${path} has other bytes than its name`)
  const tags = await engine.docker('images', '--quiet', 'orrery-build/*')
  if (tags !== '') violations.push(`${id} has left tags in the engine: ${tags}`)
  const containers = await engine.docker('ps', '--all', '--quiet')
  if (containers !== '') violations.push(`${id} has left containers: ${containers}`)
  return violations
}

const phases = ['preparing', 'building', 'verifying', 'publishing'] as const

/** A build that is long enough in the phase. @returns its id */
const buildFor = async (world: World, phase: (typeof phases)[number], id: string): Promise<string> => {
  const { programs } = world
  if (phase !== 'preparing') {
    const bytes = phase === 'building' ? 1 : 24
    const recipe =
      `FROM ${base}\nRUN echo ${id} && sleep ${phase === 'building' ? '4' : '0'} && ` +
      `head -c ${String(bytes * 2 ** 20)} /dev/urandom > /bytes\n`
    await describedBuild(
      { baseUrl: programs.baseUrl(), post: programs.post },
      id,
      { Dockerfile: recipe },
      { targetFormat: 'sif' },
    )
    return id
  }
  const image = await pushed(world, id, 32)
  return (await programs.post('/artifacts/docker/', { artifactId: id, version: '1', image })).build.id
}

const playBuild = async (world: World, number: number, series: string) => {
  const { programs } = world
  const random = randomOf(number + 1)
  const phase = phases[number % phases.length] ?? 'building'
  const blow = blows[Math.floor(number / phases.length) % blows.length] ?? 'daemon'
  const id = `${phase}-${series}-${String(number)}`
  await haveWorker(programs)
  const buildId = await buildFor(world, phase, id)
  const began = performance.now()
  const run = await programs.post(`/artifact-builds/${buildId}/runs/`)
  const path = `/build-runs/${run.id}/`
  const seen: string = (
    await until(`${phase} of ${id}`, 120, async () => {
      const found = await readOrNothing(world, path)
      return [phase, 'publishing', ...over].includes(found?.status) ? found : undefined
    })
  ).status
  await pause(random() * (phase === 'publishing' ? 20 : 1_500))
  await strike(world, blow)
  const ended = await until(`the end of ${id} after ${blow}`, 300, async () => {
    const found = await readOrNothing(world, path)
    return over.includes(found?.status) ? found : undefined
  })
  const violations: string[] = []
  if (ended.status !== 'completed') violations.push(`${id} is ${ended.status}: ${ended.error}`)
  else {
    // PostgreSQL may still recover where the blow came after the end.
    const output = await until(`the output of ${id}`, 60, async () => {
      const answer = await fetch(`${programs.baseUrl()}${path}output/`)
      return answer.status === 503 ? undefined : Buffer.from(await answer.arrayBuffer())
    })
    if (sha256(output) !== ended.outputDigest)
      violations.push(`${id}: the output has another digest than the record`)
    const version = `/artifact-versions/artifact-version:${id}:1:system:/`
    const { variants } = await until(`the version of ${id}`, 60, () => readOrNothing(world, version))
    if (variants.length !== 1 || variants[0].digest !== ended.outputDigest)
      violations.push(`${id} has ${String(variants.length)} variants`)
    else if (variants[0].verification !== 'executed')
      violations.push(`${id} is ${variants[0].verification}: ${ended.logs.slice(-500)}`)
  }
  violations.push(...(await leftOf(world, id)))
  process.stdout.write(
    `${String(number)}: ${blow} in ${seen}, ${((performance.now() - began) / 1_000).toFixed(1)} s\n`,
  )
  return { counted: 1, violations }
}

/** Builds with one kill each. */
export const openBuildKills = async (): Promise<Failures> => {
  const world = await openWorld()
  const series = Date.now().toString(36)
  return {
    what: 'kills of daemon, worker, PostgreSQL, Temporal and engine in each phase of a build: one whole image',
    play: (number) => playBuild(world, number, series),
    close: world.close,
  }
}

/** A SIF file of its own bytes in each round: what stands behind the file system is not read by Apptainer. */
const seedSif = (folder: string, id: string): string => {
  const recipe = join(folder, 'recipe')
  const plain = join(folder, 'plain.sif')
  if (!existsSync(plain)) {
    mkdirSync(recipe, { recursive: true })
    writeFileSync(join(recipe, 'bytes'), randomBytes(96 * 2 ** 20))
    const definition = `Bootstrap: docker-archive\nFrom: ${join(folder, 'base.tar')}\n%files\n${recipe}/bytes /bytes\n`
    writeFileSync(join(recipe, 'a.def'), definition)
    execFileSync('apptainer', ['-s', 'build', '--mksquashfs-args', '-noD -noF', plain, join(recipe, 'a.def')])
  }
  const name = `${id}.sif`
  writeFileSync(join(folder, name), Buffer.concat([readFileSync(plain), randomBytes(16)]))
  return name
}

/** What the record and the log of a run lack. */
const deliveryFaults = async (world: World, id: string, ended: any): Promise<string[]> => {
  const { artifactMaterializations: places, artifactTransferRuns: moves } = ended
  if (ended.run.status !== 'completed') return [`${id} is ${ended.run.status}: ${ended.run.failureReason}`]
  const violations: string[] = []
  const { body } = await world.programs.call('GET', `/execution-runs/${id}/activities/${id}-one/`)
  if (body?.activity?.status !== undefined && body.activity.status !== 'completed')
    violations.push(`${id}: its task is ${body.activity.status}`)
  if (
    places.length !== 1 ||
    places[0].status !== 'committed' ||
    places[0].verifiedDigest !== places[0].digest
  )
    violations.push(`${id} has materializations ${JSON.stringify(places)}`)
  if (moves.some(({ status }: { status: string }) => status !== 'completed') || moves.length > 1)
    violations.push(`${id} has transfers ${JSON.stringify(moves)}`)
  return violations
}

const runKilled = async (
  world: World,
  given: {
    id: string
    blow: Blow
    place: WorldPlace
    connections: Record<string, unknown>[]
    executable: Record<string, unknown>
    /** Resolves when it is time for the blow. */
    ripe: () => Promise<unknown>
  },
) => {
  const { programs } = world
  const { id, blow, place, connections, executable } = given
  const made = await makeWorld(programs, {
    ...{ name: id, cores: [2], places: [place], connections },
    tasks: [{ name: 'one', executable, run: 'echo it ran', memory: '64Mi', lane: [0, 0] }],
  })
  const began = performance.now()
  await programs.post('/execution-runs/', { id, schedulePlanId: made.planId, mode: 'real' })
  await given.ripe()
  await strike(world, blow)
  const ended = await until(`the end of ${id} after ${blow}`, 300, async () => {
    const found = await readOrNothing(world, `/execution-runs/${id}/`)
    return over.includes(found?.run.status) ? found : undefined
  })
  process.stdout.write(`${id}: ${blow}, ${((performance.now() - began) / 1_000).toFixed(1)} s\n`)
  return deliveryFaults(world, id, ended)
}

/** Deliveries with one kill each: by turns a pull by this machine's engine, and a SIF file to a host. */
export const openDeliveryKills = async (): Promise<Failures> => {
  const world = await openWorld()
  const { programs, engine, dataDir } = world
  const ssh = await startSsh({ hosts: 1 })
  const close = async (): Promise<void> => {
    await world.close()
    await ssh.stop()
  }
  try {
    const [host] = ssh.hosts
    await allowApptainer(host)
    const seeds = join(dataDir, 'seeds')
    await engine.docker('save', '--output', join(seeds, 'base.tar'), base)
    await programs.post('/ssh-keys/import/', { id: 'host', privateKey: ssh.key.privateKey })
    const folder = join(host.folder, 'home/ada/.orrery/artifacts')
    const arriving = (): string[] =>
      existsSync(join(folder, 'arriving')) ? readdirSync(join(folder, 'arriving')) : []

    const pull = async (id: string, blow: Blow, random: () => number) => {
      const image = await pushed(world, id, 48)
      const violations = await runKilled(world, {
        ...{ id, blow, connections: [] },
        place: inContainers({ containerRuntime: 'docker', containerHost: `unix://${engine.socket}` }),
        executable: { source: { type: 'oci', reference: image }, delivery: { strategy: 'auto' } },
        ripe: () => pause(100 + random() * 2_500),
      })
      await engine.docker('rmi', '--force', image)
      return violations
    }
    const bring = async (id: string, blow: Blow, random: () => number) => {
      const path = seedSif(seeds, id)
      const digest = fileDigest(join(seeds, path))
      const violations = await runKilled(world, {
        ...{ id, blow, connections: [connectionTo(`${id}-host`, host, 'host')] },
        place: {
          ...onHost(`${id}-host`, { containerRuntime: 'apptainer' }),
          capabilities: { container: true },
        },
        executable: { source: { type: 'local-file', path }, delivery: { strategy: 'auto' } },
        ripe: async () => {
          await until('its bytes arrive', 60, () =>
            arriving().length > 0 || existsSync(join(folder, `${digest.slice(7)}.sif`)) ? true : undefined,
          )
          await pause(random() * 700)
        },
      })
      const file = join(folder, `${digest.slice(7)}.sif`)
      if (!existsSync(file)) violations.push(`${id}: the host has no file`)
      else if (fileDigest(file) !== digest) violations.push(`${id}: the host has other bytes`)
      violations.push(...arriving().map((name) => `${id} has left arriving/${name}`))
      for (const each of [file, join(seeds, path)]) rmSync(each, { force: true })
      return violations
    }

    const series = Date.now().toString(36)
    return {
      what: 'kills of daemon, worker, PostgreSQL, Temporal and engine in deliveries: once, whole, nothing half',
      play: async (number) => {
        await haveWorker(programs)
        const kinds = { pull, bring }
        const kind = number % 2 === 0 ? 'pull' : 'bring'
        const blow = blows[Math.floor(number / 2) % blows.length] ?? 'daemon'
        const id = `${kind}-${series}-${String(number)}`
        const violations = await kinds[kind](id, blow, randomOf(number + 1))
        return { counted: 1, violations: [...violations, ...(await leftOf(world, id))] }
      },
      close,
    }
  } catch (error) {
    await close()
    throw error
  }
}
