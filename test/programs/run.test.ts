import { spawn, spawnSync } from 'node:child_process'
import { chmodSync, cpSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from '@jest/globals'
import { temporaryFolder, until } from '../embedded/folder.ts'

/**
 * The Node that a machine comes with; the programs' own is a dependency that is installed first.
 */
const bareNode =
  ['/usr/bin/node', '/usr/local/bin/node', process.execPath].find((path) => existsSync(path)) ??
  process.execPath

/**
 * A checkout of two files and an npm that installs what a real one would: `node_modules/.bin/node`.
 * It counts its calls, so that it can be seen when an installation happens.
 */
const checkout = (
  path: string,
  program: string,
  npm = '',
): { run: string; environment: Record<string, string>; installations: () => number } => {
  mkdirSync(join(path, 'bin'))
  mkdirSync(join(path, 'src'))
  mkdirSync(join(path, 'tools'))
  cpSync(new URL('../../bin/run.mjs', import.meta.url).pathname, join(path, 'bin', 'run.mjs'))
  writeFileSync(join(path, 'package-lock.json'), '{"lock":1}')
  writeFileSync(join(path, 'package.json'), '{"type":"module"}')
  writeFileSync(join(path, 'src', 'main.ts'), program)
  writeFileSync(
    join(path, 'tools', 'npm'),
    `#!/bin/sh\n[ "$1" = ci ] || exit 9\necho x >> ${join(path, 'installations')}\n${npm}\nrm -rf ` +
      `node_modules; mkdir -p node_modules/.bin; ln -s ${process.execPath} node_modules/.bin/node\n`,
  )
  chmodSync(join(path, 'tools', 'npm'), 0o755)
  const count = join(path, 'installations')
  return {
    run: join(path, 'bin', 'run.mjs'),
    environment: { PATH: `${join(path, 'tools')}:/usr/bin:/bin` },
    installations: () => (existsSync(count) ? readFileSync(count, 'utf8').trim().split('\n').length : 0),
  }
}

test('installs when nothing is there and when the lock has changed, and only then; hands over arguments and exit code', () => {
  using folder = temporaryFolder()
  const { run, environment, installations } = checkout(
    folder.path,
    'process.stdout.write(`${process.version} ${process.argv.slice(2).join(" ")}`); process.exit(7)',
  )
  const go = () =>
    spawnSync(bareNode, [run, 'start', '--one', 'two words'], { env: environment, encoding: 'utf8' })
  const first = go()
  expect(first.stderr).toMatch(/installing the dependencies[\s\S]*dependencies installed in \d+ s/)
  expect([first.status, first.stdout]).toEqual([7, `${process.version} --one two words`])
  const second = go()
  expect([second.status, second.stderr, installations()]).toEqual([7, '', 1])
  writeFileSync(join(folder.path, 'package-lock.json'), '{"lock":2}')
  expect(go().status).toBe(7)
  expect(installations()).toBe(2)
})

test('an installation that fails is shown and is tried again next time', () => {
  using folder = temporaryFolder()
  const { run, environment } = checkout(folder.path, '', 'echo registry is away >&2; exit 3')
  const failed = spawnSync(bareNode, [run, 'start'], { env: environment, encoding: 'utf8' })
  expect(failed.status).toBe(2)
  expect(failed.stderr).toMatch(/npm ci ended with code 3:\nregistry is away/)
  expect(
    spawnSync(bareNode, [run, 'start'], { env: { PATH: join(folder.path, 'no-tools') }, encoding: 'utf8' })
      .stderr,
  ).toContain('npm was not found')
})

test('passes signals on and ends as the program ends', async () => {
  using folder = temporaryFolder()
  const marker = join(folder.path, 'marker')
  const program = `import { writeFileSync } from 'node:fs'
    process.on('SIGTERM', () => { writeFileSync(${JSON.stringify(marker)}, 'drained'); process.exit(0) })
    writeFileSync(${JSON.stringify(marker)}, 'up'); setInterval(() => {}, 1000)`
  const { run, environment } = checkout(folder.path, program)
  const child = spawn(bareNode, [run, 'start'], { env: environment, stdio: 'ignore' })
  const ended = new Promise((resolve) =>
    child.once('exit', (code, signal) => {
      resolve(code ?? signal)
    }),
  )
  await until(() => existsSync(marker) && readFileSync(marker, 'utf8') === 'up', 'the program runs')
  child.kill('SIGTERM')
  expect(await ended).toBe(0)
  expect(readFileSync(marker, 'utf8')).toBe('drained')
})

test('names the programs it knows', () => {
  const wrong = spawnSync(bareNode, [new URL('../../bin/run.mjs', import.meta.url).pathname, 'stop'], {
    encoding: 'utf8',
  })
  expect(wrong.status).toBe(2)
  expect(wrong.stderr).toMatch(/start\|worker\|demo/)
})

test('every program of the README runs by the Node that is installed first', () => {
  const root = new URL('../../', import.meta.url).pathname
  const { scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    scripts: Record<string, string>
  }
  const named = new Set(
    [...readFileSync(join(root, 'README.md'), 'utf8').matchAll(/\bnpm (?:run )?([a-z:]+)/g)].map(
      ([, name]) => name,
    ),
  )
  const programs = Object.entries(scripts).filter(([name]) => named.has(name))
  expect(programs.map(([name]) => name)).toEqual(expect.arrayContaining(['start', 'test', 'clients']))
  for (const [name, command] of programs)
    expect([name, command]).toEqual([name, `exec node bin/run.mjs ${name}`])
})
