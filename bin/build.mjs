// Compiles to dist/: programs, what they read at run time, and the workflows as one bundle, so that a worker starts without a bundler.
import { execFileSync } from 'node:child_process'
import { cpSync, globSync, rmSync, writeFileSync } from 'node:fs'
import { bundleWorkflowCode } from '@temporalio/worker'
import { readArguments } from '../src/arguments.ts'

readArguments({ usage: 'npm run build     compiles the programs and the workflows to dist/' }, () => undefined)

const root = new URL('../', import.meta.url)
const at = (path) => new URL(path, root).pathname

rmSync(at('dist'), { recursive: true, force: true })
execFileSync(at('node_modules/.bin/tsc'), ['-p', at('tsconfig.build.json')], { stdio: 'inherit' })
for (const name of ['migrations', 'functions', 'views', 'definitions.json'])
  cpSync(at(`src/db/${name}`), at(`dist/src/db/${name}`), { recursive: true })
cpSync(at('src/drivers/runtime/local/runner.go'), at('dist/src/drivers/runtime/local/runner.go'))
// Programs for the shells of sites lie beside the drivers that run them.
for (const program of globSync('src/drivers/**/*.sh', { cwd: at('') })) cpSync(at(program), at(`dist/${program}`))
cpSync(at('src/clients/buildkit.proto'), at('dist/src/clients/buildkit.proto'))
cpSync(at('temporal-config'), at('dist/temporal-config'), { recursive: true })
const { code } = await bundleWorkflowCode({
  workflowsPath: at('dist/workflows/index.js'),
  failureConverterPath: at('dist/src/vault/failure-converter.js'),
})
writeFileSync(at('dist/workflow-bundle.js'), code)
// Only the bundle is run: without these files no worker can quietly bundle at its start instead.
rmSync(at('dist/workflows'), { recursive: true })
