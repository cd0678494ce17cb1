import type { DriverKind } from '../contract/kind.ts'
import { serverlessProblems } from './configuration.ts'
import { openServerlessDriver, serverlessCapabilities } from './driver.ts'

/** Functions that are called over HTTP: this machine sends the calls and keeps their results. */
export const serverless: DriverKind = {
  capabilities: serverlessCapabilities,
  schedulesItself: true,
  sharesFiles: true,
  hasPartitions: false,
  inNamespace: false,
  containers: 'never',
  holdsDefaultMemory: true,
  siteOf: ({ runtimeId }) => `serverless/${runtimeId}`,
  problems: (configuration, demand) =>
    serverlessProblems(demand, configuration).filter(({ severity }) => severity === 'error'),
  open({ runtime, taskVariable, configuration }, { shellOf, functions }) {
    const { credentialOf, ...platform } = functions
    const { credentialRef } = configuration
    const named = typeof credentialRef === 'string' && credentialRef !== ''
    const credential = named ? { credential: () => credentialOf(credentialRef) } : {}
    const driver = openServerlessDriver({ runtime, taskVariable, configuration, ...platform, ...credential })
    return { driver, shell: shellOf(undefined), close: () => driver.close() }
  },
}
