import { existsSync, renameSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { bundleWorkflowCode, DefaultLogger } from '@temporalio/worker'
import { failureConverterPath } from '../../src/vault/data-converter.ts'
import { sharedFolder } from './run-folder.ts'

/**
 * The service's workflows (or those of a file of the tests) in one file, as `npm run build` makes
 * it. The first test file that needs it makes it for the whole run: bundling takes 1.7 s of a
 * processor.
 */
export const workflowBundle = async (
  workflowsPath = new URL('../../workflows/index.ts', import.meta.url).pathname,
): Promise<{ codePath: string }> => {
  const codePath = join(sharedFolder(), `workflow-bundle-${basename(workflowsPath, '.ts')}.js`)
  if (!existsSync(codePath)) {
    const { code } = await bundleWorkflowCode({
      workflowsPath,
      failureConverterPath,
      logger: new DefaultLogger('WARN'),
    })
    const temporary = `${codePath}.${process.pid}`
    writeFileSync(temporary, code)
    renameSync(temporary, codePath)
  }
  return { codePath }
}
