import { mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { configFromEnvironment } from '../../src/config.ts'
import { openDockerEngine, type DockerEngine } from '../../sites/docker.ts'
import { runFolder } from '../support/run-folder.ts'
import { debianBase } from './debian-base.ts'

/**
 * The engine in which images are built and started, without containers and volumes of earlier test
 * runs; what it built stays in the cache.
 */
export interface ImageEngine extends DockerEngine {
  /** Name of an image of Debian 13. */
  readonly base: string
  /** A folder of this test file. */
  readonly scratch: string
  /** Builds an image from a folder with a Dockerfile. */
  build(tag: string, context: string, ...options: string[]): Promise<void>
}

export const root = new URL('../../', import.meta.url).pathname

const removeContainers = async ({ docker }: DockerEngine): Promise<void> => {
  const ids = async (...args: string[]): Promise<string[]> =>
    (await docker(...args, '--quiet')).split('\n').filter((id) => id !== '')
  for (const container of await ids('ps', '--all')) await docker('rm', '--force', '--volumes', container)
  for (const volume of await ids('volume', 'ls')) await docker('volume', 'rm', volume)
  await docker('network', 'prune', '--force')
}

/** Waits for its turn, at most 15 minutes. The caller closes it. */
export const openImageEngine = async (): Promise<ImageEngine> => {
  const { cacheDir } = configFromEnvironment()
  const scratch = mkdtempSync(join(runFolder(), 'orrery-image-'))
  const engine = await openDockerEngine({ data: join(cacheDir, 'test-engine') })
  const close = async (): Promise<void> => {
    try {
      await removeContainers(engine)
      await engine.docker('image', 'prune', '--force')
      await engine.docker('builder', 'prune', '--force', '--keep-storage', '6GB')
    } finally {
      await engine[Symbol.asyncDispose]()
      rmSync(scratch, { recursive: true, force: true })
    }
  }
  try {
    await removeContainers(engine)
    const base = await debianBase(engine, { cacheDir, scratch })
    const build: ImageEngine['build'] = async (tag, context, ...options) => {
      await engine.docker(
        'build',
        '--network',
        'host',
        '--build-arg',
        `BASE=${base}`,
        '--tag',
        tag,
        ...options,
        context,
      )
    }
    return { ...engine, base, scratch, build, [Symbol.asyncDispose]: close }
  } catch (error) {
    await close()
    throw error
  }
}
