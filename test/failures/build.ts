import { execFileSync } from 'node:child_process'
import {
  chmodSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { mutated, type Mutation } from '../support/mutation.ts'
import { workflowBundle } from '../support/workflow-bundle.ts'

const checkout = new URL('../../', import.meta.url).pathname

/** A copy of the programs in a folder of its own, changed as told; runs as the checkout does. */
export const copyBuild = (mutations: readonly Mutation[], parent = tmpdir()): string => {
  const folder = mkdtempSync(join(parent, 'orrery-build-'))
  chmodSync(folder, 0o755)
  for (const part of [
    ...['src', 'workflows', 'activities', 'temporal-config', 'examples/requests.yaml'],
    ...['package.json', 'tsconfig.json'],
  ])
    cpSync(join(checkout, part), join(folder, part), { recursive: true })
  symlinkSync(join(checkout, 'node_modules'), join(folder, 'node_modules'))
  for (const mutation of mutations) {
    const path = join(folder, mutation.file)
    writeFileSync(path, mutated(readFileSync(path, 'utf8'), mutation))
  }
  return folder
}

export interface Build {
  folder: string
  /** What its programs get beside their own configuration. */
  environment: Record<string, string>
}

/**
 * The programs with their workflows bundled, as `npm run build` leaves them, and with their code
 * compiled: a start takes half the processor time.
 */
const makeBuild = async (root: string): Promise<Build> => {
  const folder = join(root, 'build')
  const environment = { NODE_COMPILE_CACHE: join(root, 'compiled') }
  if (existsSync(folder)) return { folder, environment }
  const made = copyBuild([], root)
  const { codePath } = await workflowBundle()
  copyFileSync(codePath, join(made, 'workflow-bundle.js'))
  try {
    renameSync(made, folder)
  } catch (error) {
    // Another test file has made it meanwhile.
    rmSync(made, { recursive: true })
    if (!existsSync(folder)) throw error
    return { folder, environment }
  }
  // Compiled code is written at an orderly end, which most programs in failure tests do not come
  // to.
  execFileSync(
    process.execPath,
    [
      ...['--import', '@temporalio/worker', '--import', join(folder, 'src/service.ts')],
      ...[join(folder, 'src/main.ts'), '--print-config'],
    ],
    {
      cwd: folder,
      env: { PATH: '/usr/bin:/bin', HOME: '/', ...environment },
      stdio: ['ignore', 'ignore', 'inherit'],
    },
  )
  return { folder, environment }
}

let build: Promise<Build> | undefined
/**
 * The programs that failure tests start, made at the first start of a test run; outside of one, the
 * checkout.
 */
export const buildOfRun = (): Promise<Build> => {
  const root = process.env['ORRERY_TEST_SHARED']
  build ??= root === undefined ? Promise.resolve({ folder: checkout, environment: {} }) : makeBuild(root)
  return build
}
