import { execFile } from 'node:child_process'
import { existsSync, mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { runFolder } from './run-folder.ts'

const run = promisify(execFile)
const version = '4.32.5'

/**
 * The program, installed once into a virtual environment of the cache folder (93 MB; about a minute
 * with a nearby package index).
 */
export const installSchemathesis = async (cacheDir: string): Promise<string> => {
  const place = join(cacheDir, `schemathesis-${version}`)
  const program = join(place, 'bin', 'schemathesis')
  const complete = join(place, 'complete')
  if (existsSync(complete)) return program
  rmSync(place, { recursive: true, force: true })
  await run('python3', ['-m', 'venv', place])
  await run(join(place, 'bin', 'python'), [
    '-m',
    'pip',
    'install',
    '--quiet',
    '--disable-pip-version-check',
    `schemathesis==${version}`,
  ])
  await run(program, ['--version'])
  // Two test runs may install side by side, so the marker is written last and atomically.
  await run('touch', [`${complete}.part`])
  renameSync(`${complete}.part`, complete)
  return program
}

/** One run against a service. The text is its output, for the message of the test. */
export const runSchemathesis = async (
  program: string,
  options: { document: string; baseUrl: string; seconds: number; seed: number },
): Promise<{ code: number; text: string }> => {
  const settings = join(mkdtempSync(join(runFolder(), 'schemathesis-')), 'schemathesis.toml')
  writeFileSync(
    settings,
    // A type of connection is not built, or its other side is unreachable; the console is disabled,
    // since generated commands must not run here; no engine need be there that builds.
    [
      'include-path = "/connection-tests/"',
      'include-path-regex = "^/console-"',
      'include-path = "/artifact-builds/{buildId}/runs/"',
    ]
      .map(
        (which) =>
          `[[operations]]\n${which}\n[operations.checks.not_a_server_error]\nexpected-statuses = ` +
          `["2xx", "3xx", "4xx", 503]\n`,
      )
      .join(''),
  )
  const words = [
    '--config-file',
    settings,
    'run',
    options.document,
    // Two paths are outside of the prefix that `--url` puts before every path; a reset would empty
    // the service under test; the program writes no ZIP files.
    ...['/', '/openapi.json', '/factory-reset/', '/instances/import/'].flatMap((path) => [
      '--exclude-path',
      path,
    ]),
    '--url',
    options.baseUrl,
    '--checks',
    'not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance',
    '--phases',
    'coverage,fuzzing',
    '--max-examples',
    '10',
    '--max-time',
    String(options.seconds),
    '--seed',
    String(options.seed),
    '--no-shrink',
    // With two workers Python 3.11 crashes now and then: its parser counts the recursion of all
    // threads together ("AST constructor recursion depth mismatch").
    '--workers',
    '1',
    '--suppress-health-check',
    'all',
    '--request-timeout',
    '30',
    '--warnings',
    'off',
    '--no-color',
  ]
  try {
    const { stdout, stderr } = await run(program, words, {
      maxBuffer: 2 ** 28,
      cwd: process.env['ORRERY_TEST_ROOT'] ?? process.cwd(),
    })
    return { code: 0, text: stdout + stderr }
  } catch (error) {
    const { code, stdout, stderr } = error as { code?: unknown; stdout?: string; stderr?: string }
    if (typeof code !== 'number') throw error
    return { code, text: `${stdout ?? ''}${stderr ?? ''}` }
  }
}
