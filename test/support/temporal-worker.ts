import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { bundleWorkflowCode as bundle, type BundleOptions, type WorkflowBundle } from '../../node_modules/@temporalio/worker/lib/index.js'

/** `@temporalio/worker` as tests get it: all of it, but for the bundler, which works once per test run. */
export * from '../../node_modules/@temporalio/worker/lib/index.js'

/**
 * The service's workflows in one file, as `npm run build` makes it and a worker finds it in production. Each test file would otherwise
 * bundle them anew at each start of a worker, which takes 1.7 s of a processor.
 */
export const bundleWorkflowCode = async (options: BundleOptions): Promise<WorkflowBundle> => {
  const root = process.env['ORRERY_TEST_ROOT']
  if (root === undefined) throw new Error('ORRERY_TEST_ROOT is not set: run the tests with npm test, whose global setup makes it')
  const file = join(root, 'workflow-bundle.js')
  if (!existsSync(file)) {
    const { code } = await bundle(options)
    const temporary = `${file}.${String(process.pid)}`
    writeFileSync(temporary, code)
    renameSync(temporary, file)
  }
  return { code: readFileSync(file, 'utf8') }
}
