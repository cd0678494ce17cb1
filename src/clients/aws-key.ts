/** An access key of AWS, or of a service that checks signatures as AWS does. */
export interface AwsKey {
  accessKeyId: string
  secretAccessKey: string
  sessionToken?: string
}
