// Compiles to dist/: the programs, the files that they read at run time, and the workflows as one
// bundle, so that a worker starts without a bundler.
import { execFileSync } from 'node:child_process'
import { cpSync, globSync, rmSync, writeFileSync } from 'node:fs'
import { readArguments } from '../src/programs/arguments.ts'

readArguments(
  { usage: 'npm run build     compiles the programs and the workflows to dist/' },
  () => undefined,
)

const root = new URL('../', import.meta.url)
const at = (path) => new URL(path, root).pathname

rmSync(at('dist'), { recursive: true, force: true })
execFileSync(at('node_modules/.bin/tsc'), ['-p', at('tsconfig.build.json')], { stdio: 'inherit' })
for (const name of ['migrations', 'functions', 'views', 'definitions.json'])
  cpSync(at(`src/db/${name}`), at(`dist/src/db/${name}`), { recursive: true })
cpSync(at('src/domains/console/holder/holder.go'), at('dist/src/domains/console/holder/holder.go'))
cpSync(at('src/drivers/runtime/local/runner.go'), at('dist/src/drivers/runtime/local/runner.go'))
// Programs for shells and for Ansible are stored beside the code that runs them.
for (const program of globSync('src/**/*.{sh,py}', { cwd: at('') }))
  cpSync(at(program), at(`dist/${program}`))
cpSync(at('src/clients/buildkit.proto'), at('dist/src/clients/buildkit.proto'))
cpSync(at('examples/requests.yaml'), at('dist/examples/requests.yaml'))
cpSync(at('temporal-config'), at('dist/temporal-config'), { recursive: true })
// The bundler takes seconds to load, which --help does not wait for.
const { bundleWorkflowCode } = await import('@temporalio/worker')
const { code } = await bundleWorkflowCode({
  workflowsPath: at('dist/workflows/index.js'),
  failureConverterPath: at('dist/src/vault/failure-converter.js'),
})
writeFileSync(at('dist/workflow-bundle.js'), code)
// Only the bundle is used: without these files no worker can silently bundle at its start instead.
rmSync(at('dist/workflows'), { recursive: true })
