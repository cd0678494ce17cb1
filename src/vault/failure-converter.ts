import { DefaultFailureConverter } from '@temporalio/common'

/**
 * Puts messages and stacks of failures where the payload codec encrypts them: they quote hosts, ports and paths. The
 * SDK loads this file by its path, in programs and in the bundle of the workflows alike.
 */
export const failureConverter = new DefaultFailureConverter({ encodeCommonAttributes: true })
