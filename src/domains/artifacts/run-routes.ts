import { z } from 'zod'
import { pingEngine } from '../../clients/docker.ts'
import { NoAnswerError } from '../../clients/no-answer.ts'
import { apptainerLack } from '../../drivers/build/apptainer.ts'
import { packingLack } from '../../drivers/build/sif.ts'
import type { Engine } from '../../engine.ts'
import { preferred } from '../../http/accept.ts'
import { rangeOf, rangeReply } from '../../http/byte-range.ts'
import { listRoute } from '../../http/list-route.ts'
import { logRangeQuery } from '../../http/paging.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import type { Feed } from '../../operations/feed.ts'
import { dispatchOperation, operationRoutes, type OperationApi } from '../../operations/routes.ts'
import { Refusal, existing } from '../../refusal.ts'
import { buildRunKind } from './build-kind.ts'
import { needsEngine, readBuild, type BuildParts } from './builds.ts'
import { hostOfContext } from './contexts.ts'
import { attestationKey, attestationOf, type AttestationParts } from './attestation.ts'
import { readRunLog } from './logs.ts'
import { startRun } from './repeats.ts'
import { listRuns, readLive, readOutput, readRun, runIdOf } from './runs.ts'
import { Attestation, BuildRun } from './schemas.ts'

export interface BuildRunParts extends BuildParts {
  engine: Pick<Engine, 'start' | 'cancel' | 'live'>
  feed: Feed
  /** Socket of the engine that runs the builds. */
  buildEngine: string
  vault: AttestationParts['vault']
}

export const sifType = 'application/vnd.sylabs.sif'
const ociType = 'application/x-tar'

/** @throws Refusal 503 while the engine cannot build */
const refuseWithoutEngine = async (socket: string): Promise<void> => {
  try {
    await pingEngine(socket)
  } catch (error) {
    if (!(error instanceof NoAnswerError)) throw error
    throw new Refusal(
      'unavailable',
      `the container engine that builds does not answer (${error.message}); start Docker, or name its ` +
        'socket in SERVICE_CONTAINER_ENGINE',
      { retryAfterSeconds: 10, cause: error },
    )
  }
}

/**
 * A build runs where its context is; one without a context runs here. @throws Refusal 503 where that is
 * this host, and it lacks what the build needs
 */
const refuseUnbuildable = async (
  parts: BuildRunParts,
  build: Awaited<ReturnType<typeof readBuild>>,
): Promise<void> => {
  const host = await hostOfContext(parts.db, build.contextDigest)
  if (host !== undefined && host !== parts.hostId) return
  const lack =
    (build.sourceType === 'definition' ? apptainerLack() : undefined) ??
    (build.targetFormat === 'sif' ? packingLack() : undefined)
  if (lack !== undefined) throw new Refusal('unavailable', lack)
  try {
    await refuseWithoutEngine(parts.buildEngine)
  } catch (error) {
    if (!(error instanceof Refusal) || (await needsEngine(parts, build))) throw error
  }
}

const outputRoute = ({ db, artifactStore, hostId }: BuildRunParts): Route =>
  route('getBuildRunOutput', 'GET /build-runs/{runId}/output/', {
    summary: 'What a completed build run made: a SIF file, or an OCI layout as tar; all, or one range',
    raw: [sifType, ociType],
    fixedType: true,
    streams: true,
    alsoStatus: [206],
    refuses: [416, 503],
    handle: async ({ params: { runId }, headers }) => {
      const found = existing(await readOutput(db, runId), 'build run', runId)
      const { digest, format } = found
      if (found.status !== 'completed' || digest == null)
        throw new Refusal(
          'missing',
          `the build run is ${found.status}; it has an output once it is completed`,
        )
      const size = await artifactStore.sizeOf('images', digest)
      if (size === undefined)
        throw new Refusal(
          'unavailable',
          found.hostId === hostId
            ? 'the store of this host lost the output; start the build again with ?fresh=true'
            : `the output lies on the host ${found.hostId}; ask the service there`,
        )
      const etag = `"${digest}"`
      const same = headers['if-range'] === undefined || headers['if-range'].trim() === etag
      const range = same ? rangeOf(headers['range'], size, 'the output') : undefined
      return new Reply({
        stream: artifactStore.read('images', digest, range),
        ...rangeReply(range, size, {
          'content-type': format === 'sif' ? sifType : ociType,
          'content-disposition': `attachment; filename="${runId}.${format === 'sif' ? 'sif' : 'oci.tar'}"`,
          etag,
        }),
      })
    },
  })

const logRoute = (parts: BuildRunParts): Route =>
  route('readBuildRunLog', 'GET /build-runs/{runId}/logs/', {
    summary:
      'The log of a build run by range (`offset`, `limit`) or from its end (`tail` bytes); with ' +
      '`follow=true`, or as server-sent events, until the run has ended. A reader that follows and is ' +
      'more than 1 MiB behind is cut; it goes on by `offset`: `Orrery-Offset` is that of the first byte',
    query: z.strictObject(logRangeQuery),
    raw: ['text/plain', 'text/event-stream'],
    streams: true,
    alsoStatus: [206],
    refuses: [503],
    handle: ({ params: { runId }, query: { follow, ...range }, headers }) => {
      const after = /^\d{1,15}$/.exec(headers['last-event-id'] ?? '')?.[0]
      const events = preferred(headers['accept'], ['text/plain', 'text/event-stream']) === 'text/event-stream'
      return readRunLog(parts, runId, {
        ...range,
        follow: follow === 'true',
        events,
        ...(after === undefined ? {} : { after: Number(after) }),
      })
    },
  })

const attestationRoutes = (parts: BuildRunParts): Route[] => [
  route('getBuildAttestation', 'GET /build-runs/{runId}/attestation/', {
    summary: 'How a completed build run made its output: SLSA v1 provenance in a signed DSSE envelope',
    response: Attestation,
    refuses: [503],
    handle: ({ params: { runId } }) => attestationOf(parts, runId),
  }),
  route('getAttestationKey', 'GET /attestation-key/', {
    summary: 'The public key (ed25519, PEM) by which attestations are checked',
    response: z.strictObject({ publicKey: z.string() }),
    refuses: [404, 503],
    handle: async () => ({ publicKey: await attestationKey(parts) }),
  }),
]

/** Runs of builds, and their outputs. */
export const buildRunRoutes = (parts: BuildRunParts): Route[] => {
  const { db } = parts
  const api: OperationApi = {
    ...parts,
    ...{ kind: buildRunKind, path: '/build-runs/', parameter: 'runId' },
  }
  const of = operationRoutes(api)
  const made = async (id: string) => {
    const body = await readRun(db, id)
    const headers = { location: `/build-runs/${encodeURIComponent(id)}/` }
    return { createdAt: body.createdAt, answer: new Reply({ body, headers }) }
  }
  return [
    listRoute('listBuildRuns', 'GET /artifact-builds/{buildId}/runs/', {
      summary: 'Runs of a build, newest first',
      item: BuildRun,
      read: async (page, { params: { buildId } }) => {
        await readBuild(db, buildId)
        return listRuns(db, buildId, page)
      },
    }),
    route('startBuildRun', 'POST /artifact-builds/{buildId}/runs/', {
      summary: 'Start a build; where a run of it is open, that one',
      query: z.strictObject({
        fresh: z.enum(['true', 'false']).optional().describe('true: build anew what was built before'),
      }),
      response: BuildRun,
      status: 202,
      refuses: [503],
      audit: { eventType: 'artifact.build-run.created', summary: 'a run of the build {buildId} asked for' },
      made: ({ newId }) => made(runIdOf(newId)),
      handle: async ({ params: { buildId }, query, newId }) => {
        const build = await readBuild(db, buildId)
        await refuseUnbuildable(parts, build)
        const { id, needsWorkflow } = await startRun(parts, { buildId, newId, fresh: query.fresh === 'true' })
        if (needsWorkflow) await dispatchOperation(api, { id, generation: 1 })
        return (await made(id)).answer
      },
    }),
    route('getBuildRun', 'GET /build-runs/{runId}/', {
      summary: 'One run of a build, with the end of its log',
      response: BuildRun,
      handle: async ({ params: { runId } }) => {
        const [run, live] = await Promise.all([readRun(db, runId), readLive(db, runId)])
        return { ...run, ...(live === undefined ? {} : { live }) }
      },
    }),
    outputRoute(parts),
    logRoute(parts),
    ...attestationRoutes(parts),
    of.cancel({
      summary: 'Ask for the end of a build run; what it left in the engine and the store goes',
      document: { schema: BuildRun, read: (id) => readRun(db, id) },
    }),
    of.events(),
  ]
}
