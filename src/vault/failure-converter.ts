import { DefaultFailureConverter } from '@temporalio/common'

/**
 * Moves messages and stacks of failures into the payload that the codec encrypts: they quote hosts,
 * ports and paths. The SDK loads this file by its path, in programs and in the bundle of the
 * workflows alike.
 */
export const failureConverter = new DefaultFailureConverter({ encodeCommonAttributes: true })
