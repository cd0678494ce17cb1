import { listWorkers } from '../../clients/buildkit.ts'
import { pingEngine, type EngineSockets } from '../../clients/docker.ts'
import { NoAnswerError, withinDeadline } from '../../clients/no-answer.ts'
import { sql, type Db } from '../../db/sql.ts'
import { siteMemoryLimit, memoryLimitWords } from '../../drivers/runtime/contract/cgroups.ts'
import type { SiteShell } from '../../shell/site-shell.ts'
import type { LimitsProbe, Probe } from './schemas.ts'

/** Every probe ends within this time. */
const deadlineMs = 3_000

/**
 * The outcome of a probe. It is public, so it holds the message of a `NoAnswerError` and of no
 * other error.
 */
const probed = async (what: string, remedy: string, work: () => Promise<string>): Promise<Probe> => {
  try {
    return { available: true, message: await work() }
  } catch (error) {
    const reason = error instanceof NoAnswerError ? error.message : 'the check failed'
    return { available: false, message: `${what} is not available: ${reason}; ${remedy}` }
  }
}

/** Texts for the codes of the system or PostgreSQL by which a connection fails. */
const databaseReasons: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'it is not started, or listens elsewhere',
  ENOTFOUND: 'the name of its host is not known',
  EAI_AGAIN: 'the name of its host is not known',
  ETIMEDOUT: 'its host does not answer',
  EHOSTUNREACH: 'its host is not reached',
  '28P01': 'it refuses the login',
  '28000': 'it refuses the login',
  '3D000': 'it has no such database',
  '53300': 'it has too many connections',
  '57P03': 'it is starting or stopping',
}

export const probeServer = (db: Db): Promise<Probe> =>
  probed('the database', 'the service recovers by itself when it returns', async () => {
    const asked = db.run(sql`select 1`).catch((error: unknown) => {
      const reason =
        databaseReasons[(error as NodeJS.ErrnoException).code ?? ''] ?? 'it answers with an error'
      throw new NoAnswerError(reason, { cause: error })
    })
    await withinDeadline(deadlineMs, asked)
    return 'the service and its database answer'
  })

/** Docker's socket, else Podman's. */
const pingAny = async (sockets: EngineSockets): Promise<{ apiVersion: string; builderVersion: string }> => {
  const podman = pingEngine(sockets.podman, deadlineMs).catch(() => undefined)
  try {
    return await pingEngine(sockets.docker, deadlineMs)
  } catch (error) {
    const answer = await podman
    if (answer === undefined) throw error
    return answer
  }
}

export const probeEngine = (sockets: EngineSockets): Promise<Probe> =>
  probed(
    'the container engine',
    'start Docker or the API service of Podman, and let this account use its socket',
    async () => {
      const { apiVersion } = await pingAny(sockets)
      return apiVersion === ''
        ? 'the container engine answers'
        : `the container engine answers (API ${apiVersion})`
    },
  )

/** BuildKit's own daemon by its list of workers, else the BuildKit inside the container engine. */
export const probeBuildkit = (buildkitSocket: string, engineSockets: EngineSockets): Promise<Probe> =>
  probed(
    'the build backend',
    'start buildkitd, or a container engine that builds with BuildKit',
    async () => {
      const engine = pingAny(engineSockets).catch(() => undefined)
      const inEngine = async (): Promise<boolean> => (await engine)?.builderVersion === '2'
      try {
        const { workers, version } = await listWorkers(buildkitSocket, deadlineMs)
        if (workers === 0) throw new NoAnswerError('it has no worker')
        return (
          `BuildKit${version === undefined ? '' : ` ${version}`} answers with ${workers} ` +
          `worker${workers === 1 ? '' : 's'}`
        )
      } catch (error) {
        if (await inEngine()) return 'the container engine builds with BuildKit'
        throw error
      }
    },
  )

/** A result is reused for this long: each check tries to create a cgroup. */
const limitsStandMs = 60_000

/** Checks at most once a minute which mechanism limits the memory of tasks on this machine. */
export const openLimitsProbe = (shell: SiteShell): (() => Promise<LimitsProbe>) => {
  let found: { at: number; limits: Promise<LimitsProbe> } | undefined
  const ask = async (): Promise<LimitsProbe> => {
    try {
      const memory = await siteMemoryLimit(shell, deadlineMs)
      return { available: memory !== 'none', message: memoryLimitWords[memory], memory }
    } catch {
      found = undefined
      return {
        available: false,
        message: 'the answer of this machine does not name what holds tasks to their memory; ask again',
      }
    }
  }
  return () => {
    if (found === undefined || performance.now() - found.at > limitsStandMs)
      found = { at: performance.now(), limits: ask() }
    return found.limits
  }
}
