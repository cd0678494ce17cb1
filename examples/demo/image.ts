import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { gzipSync } from 'node:zlib'
import type { Api } from './api.ts'
import type { Documents } from './documents.ts'
import { duration, type Screen } from './screen.ts'

/** An image that the service has built. */
export interface MadeImage {
  buildId: string
  digest: string
}

/** The files of a folder as a build context: the same files give the same bytes. */
const contextOf = (folder: string): Buffer =>
  gzipSync(
    execFileSync('tar', [
      ...['-c', '--sort=name', '--mtime=@0', '--owner=0', '--group=0', '--numeric-owner'],
      ...['-C', folder, '.'],
    ]),
  )

/** Makes the image of a folder's recipe through the API, as a user does. */
export const makeImage = async (
  api: Api,
  given: { folder: string; base: string; format: 'sif' | 'oci'; run: string },
  { screen, stop }: { screen: Screen; stop: AbortSignal },
): Promise<MadeImage> => {
  const { folder, base, format, run } = given
  const recipe = readFileSync(path.join(folder, 'Dockerfile'))
  const { digest: contextDigest, sizeBytes } = await api.upload(
    '/build-contexts/',
    'context',
    contextOf(folder),
  )
  screen.say(`context ${contextDigest}, ${String(sizeBytes)} bytes`)
  const { artifactVersionId } = await api.post('/artifacts/', { artifactId: 'mosaic-image', version: run })
  const { id: buildId } = await api.post('/artifact-builds/', {
    ...{ id: `mosaic-image-${run}`, artifactVersionId, sourceType: 'dockerfile', contextDigest },
    recipeDigest: `sha256:${createHash('sha256').update(recipe).digest('hex')}`,
    ...{ targetFormat: format, buildArguments: JSON.stringify({ BASE: base }), cacheKey: `mosaic ${run}` },
  })
  const from = performance.now()
  let made = await api.post(`/artifact-builds/${buildId}/runs/`)
  while (!['completed', 'failed', 'cancelled'].includes(made.status)) {
    screen.live(`${made.status}${made.live?.line === undefined ? '' : `: ${made.live.line.slice(0, 60)}`}`)
    await sleep(200, undefined, { signal: stop })
    made = await api.get(`/build-runs/${made.id}/`)
  }
  if (made.status !== 'completed') throw new Error(`the build is ${made.status}: ${made.error}`)
  const took = duration((performance.now() - from) / 1_000)
  screen.say(`${format === 'sif' ? 'SIF file' : 'OCI image'}\n${made.outputDigest},\nbuilt in ${took}`)
  return { buildId, digest: made.outputDigest }
}

/** The workflow, with every activity run from what a build makes. */
export const fromBuild = (
  workflow: Documents['workflow'],
  { buildId }: MadeImage,
): Documents['workflow'] => ({
  ...workflow,
  spec: {
    ...workflow.spec,
    activities: workflow.spec.activities.map((activity) => ({
      ...activity,
      command: {
        executable: {
          source: { type: 'build', artifactBuildRef: buildId },
          delivery: { strategy: 'auto' },
        },
      },
    })),
  },
})

/** For each place of a run: whether its executable was brought there, or was there. */
export const deliveryLines = (detail: {
  artifactMaterializations: { id: string; destinationPath: string; digest: string }[]
  artifactTransferRuns: { materializationId: string; bytes: number; startedAt: number; finishedAt?: number }[]
}): string[] =>
  detail.artifactMaterializations.flatMap(({ id, destinationPath, digest }) => {
    const moved = detail.artifactTransferRuns.find(({ materializationId }) => materializationId === id)
    const how =
      moved === undefined
        ? 'was there'
        : `brought, ${(moved.bytes / 2 ** 20).toFixed(1)} MiB in ` +
          duration((moved.finishedAt ?? moved.startedAt) - moved.startedAt)
    return [
      `${digest.slice(0, 19)}… ${how}:`,
      `  ${destinationPath.replaceAll(/[0-9a-f]{40,}/g, (hex) => `${hex.slice(0, 12)}…`)}`,
    ]
  })
