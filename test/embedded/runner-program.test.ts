import { expect, test } from '@jest/globals'
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { findRunnerProgram } from '../../src/embedded/runner-program.ts'
import { findTemporalProgram } from '../../src/embedded/temporal-program.ts'
import { openLog } from '../../src/observability/log.ts'
import { runFolder } from '../support/run-folder.ts'

/** Asks with a compiler that does what the script says. */
const withCompiler = async (
  script: string,
  check: (find: () => Promise<string>, cacheDir: string) => Promise<void>,
): Promise<void> => {
  const folder = mkdtempSync(join(runFolder(), 'orrery-runner-program-'))
  writeFileSync(join(folder, 'go'), `#!/bin/sh\n[ "$1" = env ] && exit 0\n${script}\n`)
  chmodSync(join(folder, 'go'), 0o755)
  const environment = { PATH: `${folder}:/usr/bin:/bin`, HOME: folder }
  const cacheDir = join(folder, 'cache')
  try {
    await check(
      () => findRunnerProgram({ cacheDir, environment, log: openLog('silent'), onProgress: () => {} }),
      cacheDir,
    )
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

test('the runner of local tasks is built once by many who ask at once', () =>
  withCompiler(
    `while [ "$1" != -o ]; do shift; done; echo built >> "$2"; sleep 0.3; echo built`,
    async (find, cacheDir) => {
      const found = await Promise.all(Array.from({ length: 5 }, find))
      expect(new Set(found).size).toBe(1)
      expect(await find()).toBe(found[0])
      expect(readdirSync(join(found[0]!, '..'))).toEqual(['orrery-runner'])
      expect(found[0]).toContain(cacheDir)
    },
  ))

test('a build that fails leaves nothing, says the words of the compiler and what helps, and is tried again when asked', () =>
  withCompiler(`echo syntax error; exit 2`, async (find, cacheDir) => {
    for (let round = 0; round < 2; round++)
      await expect(find()).rejects.toThrow(
        /the runner of local tasks could not be built: go build ended with code 2\. Install Go[\s\S]*syntax error/,
      )
    expect(readdirSync(join(cacheDir, 'runner'), { recursive: true })).toHaveLength(1)
  }))

test('what Go compiled for the Temporal server is there for the runner, and goes after it', () =>
  withCompiler(
    `echo "$GOCACHE" >> "$HOME/caches"; mkdir -p "$GOCACHE"
[ -e "$GOCACHE/compiled" ] && echo again >> "$HOME/caches"; : > "$GOCACHE/compiled"
while [ "$1" != -o ]; do shift; done; echo built > "$2"`,
    async (find, cacheDir) => {
      const home = join(cacheDir, '..')
      const environment = { PATH: `${home}:/usr/bin:/bin`, HOME: home }
      const options = { cacheDir, environment, log: openLog('silent'), onProgress: () => {} }
      await findTemporalProgram({ ...options, named: undefined, downloadAddress: 'http://127.0.0.1:1/' })
      expect(readdirSync(cacheDir).toSorted()).toEqual(['go-objects', 'temporal'])
      await find()
      const objects = join(cacheDir, 'go-objects')
      expect(readFileSync(join(home, 'caches'), 'utf8')).toBe(`${objects}\n${objects}\nagain\n`)
      expect(readdirSync(cacheDir).toSorted()).toEqual(['runner', 'temporal'])
    },
  ))
