import { DefaultFailureConverter, TimeoutFailure } from '@temporalio/common'

/** The SDK drops what a time limit has behind it: the failure of the last try before its end. */
class CausesOfTimeouts extends DefaultFailureConverter {
  override failureToError(...given: Parameters<DefaultFailureConverter['failureToError']>): Error {
    const error = super.failureToError(...given)
    const [{ cause }, ...how] = given
    if (error instanceof TimeoutFailure)
      Object.assign(error, { cause: this.optionalFailureToOptionalError(cause, ...how) })
    return error
  }
}

/**
 * Moves messages and stacks of failures into the payload that the codec encrypts: they quote hosts,
 * ports and paths. The SDK loads this file by its path, in programs and in the bundle of the
 * workflows alike.
 */
export const failureConverter = new CausesOfTimeouts({ encodeCommonAttributes: true })
